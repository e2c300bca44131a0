"""From samples to turns."""

from __future__ import annotations

import pytest

from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.understanding.prompt_encoder import conversation, plain_text


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


def test_media_come_first_without_placeholders():
    sample = Sample("a", prompt="What?", images=("1.png", "2.png"), videos=("3.mp4",))
    assert conversation(sample) == [{"role": "user", "content": [IMAGE, IMAGE, VIDEO, text("What?")]}]


def test_media_replace_their_placeholders():
    sample = Sample("a", prompt="<image> or <video>: which?", images=("1.png",), videos=("3.mp4",))
    assert conversation(sample)[0]["content"] == [IMAGE, text(" or "), VIDEO, text(": which?")]


def test_messages_keep_roles_and_placeholders():
    sample = Sample(
        "a",
        messages=(
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [text("See <image>"), IMAGE]},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": "Sure?"},
        ),
        images=("1.png", "2.png"),
    )
    assert conversation(sample) == [
        {"role": "system", "content": [text("Be brief.")]},
        {"role": "user", "content": [text("See "), IMAGE, IMAGE]},
        {"role": "assistant", "content": [text("Two.")]},
        {"role": "user", "content": [text("Sure?")]},
    ]


def test_media_without_placeholders_go_to_the_first_user_turn():
    words = ({"role": "system", "content": "Be brief."}, {"content": "What?"}, {"role": "user", "content": "And?"})
    turns = conversation(Sample("a", messages=words, images=("1.png",)))
    assert [turn["content"] for turn in turns] == [[text("Be brief.")], [IMAGE, text("What?")], [text("And?")]]


def test_text_samples_are_unchanged():
    assert conversation(Sample("a", prompt="2 < 3 > 1 <images>")) == [
        {"role": "user", "content": [text("2 < 3 > 1 <images>")]}
    ]


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample("a", prompt="<image><image>", images=("1.png",)), "'a'.*places for 2 images.*comes with 1 and 0"),
        (Sample("a", prompt="<image>", videos=("1.mp4",)), "'a'.*1 images and 0 videos.*comes with 0 and 1"),
        (Sample("a", prompt="<image>"), "'a'.*places for 1 images.*comes with 0 and 0"),
        (Sample("a", messages=({"role": "system", "content": "?"},), images=("1.png",)), "'a'.*places for 0 images"),
        (Sample("a", messages=({"content": [{"type": "audio"}]},)), "'a'.*type 'audio': expected image, video or text"),
        (Sample("a", messages=({"content": ["What?"]},)), "'a'.*type None"),
        (Sample("a", messages=({"role": "user"},)), "'a'.*content of a message is None"),
        (
            Sample("a", messages=({"content": [{"type": "image", "image": "2.png"}]},), images=("1.png",)),
            "'a'.*has the keys image: media are listed in 'images'",
        ),
    ],
)
def test_invalid_conversations_raise_with_their_sample(sample, reason):
    with pytest.raises(DataError, match=reason):
        conversation(sample)


def test_conversation_does_not_change_the_sample():
    parts = [IMAGE, text("What?")]
    sample = Sample("a", messages=({"role": "user", "content": parts},), images=("1.png",))
    conversation(sample)
    assert sample.messages == ({"role": "user", "content": [IMAGE, text("What?")]},)


def test_plain_text_has_images_before_words():
    turns = conversation(Sample("a", prompt="detect <image> the cat", images=("1.png",)))
    assert plain_text(turns, "<pic>") == "<pic>detect   the cat"
