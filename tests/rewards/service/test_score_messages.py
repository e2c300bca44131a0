"""Requests and responses survive the way, and nothing else is taken for one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrl.data.media.uris import data_uri
from mmrl.rewards.core.reward_errors import Failure, ScoringFailed, Status
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, RewardOutput
from mmrl.rewards.service.score_messages import (
    IMAGE,
    BadMessage,
    ScoreRequest,
    decode_output,
    decode_request,
    encode_output,
    encode_request,
)


def picture(seed: int, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (5, 7, 3), np.uint8)).convert(mode)


def sent(item: RewardInput) -> RewardInput:
    return decode_request(encode_request(ScoreRequest("r", (item,), RewardContext(0.5))), 8).answers[0]


def test_the_state_of_training_survives():
    item, context = RewardInput("a", 0, "x", text="y"), RewardContext(0.25, seed=2**62 + 1)
    found = decode_request(encode_request(ScoreRequest("r", (item,), context)), 8)
    assert found.context == context
    with pytest.raises(BadMessage, match="seed"):
        decode_request(encode_request(ScoreRequest("r", (item,), RewardContext(seed=-1))), 8)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_images_survive_pixel_by_pixel(mode):
    item = RewardInput("a", 3, "draw", image=picture(0, mode), references={"image": picture(1), "answer": [1, "x"]})
    found = sent(item)
    assert found.image.mode == mode and found.image.tobytes() == item.image.tobytes()
    assert found.references["image"].tobytes() == picture(1).tobytes()
    assert (found.id, found.group, found.references["answer"]) == ("a", 3, [1, "x"])


def test_videos_and_what_numpy_holds_survive():
    item = RewardInput("a", 0, "x", video=[picture(0), picture(1)], metadata={"box": (np.int64(1), np.float32(0.5))})
    found = sent(item)
    assert [frame.tobytes() for frame in found.video] == [picture(0).tobytes(), picture(1).tobytes()]
    assert found.metadata == {"box": [1, 0.5]}


def test_metadata_whose_keys_sound_like_media_is_sent_as_it_is(tmp_path):
    """`image_id` and the like are common in data sets: no scorer misses a file there."""
    picture(0).save(tmp_path / "a.png")
    facts = {
        "image_id": "COCO_0042",
        "video_id": "a" * 400,
        "image_caption": "a cat\0",
        "frames": ["1-5", "7"],
        "image_size": [4, 5],
    }
    found = sent(RewardInput("a", 0, "x", text="y", references=facts | {"style_image": str(tmp_path / "a.png")}))
    assert found.references.pop("style_image").startswith("data:image/png") and found.references == facts


def test_files_of_references_are_sent_and_missing_ones_are_named(tmp_path):
    picture(0).save(tmp_path / "a.png")
    found = sent(RewardInput("a", 0, "x", text="y", references={"image": str(tmp_path / "a.png")}))
    assert found.references["image"] == data_uri((tmp_path / "a.png").read_bytes(), "image/png")
    with pytest.raises(ScoringFailed, match=r"references: .*b\.png"):
        sent(RewardInput("a", 0, "x", text="y", references={"mask_image": str(tmp_path / "b.png")}))
    with pytest.raises(ScoringFailed, match="neither JSON nor an image"):
        sent(RewardInput("a", 0, "x", text="y", metadata={"object": object()}))


@given(st.lists(st.floats(width=32), min_size=1, max_size=4))
def test_scores_survive_to_the_bit(values):
    size = len(values)
    output = RewardOutput(
        values={"x": np.array(values, np.float32)},
        status={"x": [Status.OK, Status.ERROR, Status.INVALID, Status.TIMEOUT][:size]},
        detail=[{"x": "why"} for _ in values],
        events=[[(2, 0.25)] for _ in values],
        seconds=0.5,
        failures=[{"x": Failure("http_503", True, 2.0)} for _ in values],
    )
    found = decode_output(encode_output(output), size)
    finite = np.where(np.isfinite(values), np.array(values, np.float32), np.float32(math.nan))
    np.testing.assert_array_equal(found.values["x"], finite)
    assert (found.status, found.detail, found.events) == (output.status, output.detail, output.events)
    assert found.failures == output.failures


GOOD = {"id": "a", "group": 0, "prompt": "x", "text": "y", "image": None, "video": None}


@pytest.mark.parametrize(
    ("message", "names"),
    [
        (b"\x80\x04K\x01.", "no JSON"),  # a pickle
        (b"[]", "expected a JSON object"),
        ({"id": "r", "answers": []}, "answers"),
        ({"id": "r", "answers": [GOOD] * 9}, "9 of them; at most 8"),
        ({"id": "", "answers": [GOOD]}, "id"),
        ({"id": "r", "progress": 2, "answers": [GOOD]}, "progress"),
        ({"id": "r", "answers": [GOOD | {"group": True}]}, r"answers\[0\].group"),
        ({"id": "r", "answers": [GOOD | {"text": 3}]}, r"answers\[0\].text"),
        ({"id": "r", "answers": [GOOD | {"image": "/etc/passwd"}]}, r"answers\[0\].image: expected an image"),
        ({"id": "r", "answers": [GOOD | {"image": {IMAGE: "/etc/passwd"}}]}, "no data URI"),
        ({"id": "r", "answers": [GOOD | {"image": {IMAGE: data_uri(b"GIF89a", "image/gif")}}]}, "cannot be read"),
        ({"id": "r", "answers": [GOOD | {"video": [1]}]}, r"answers\[0\].video"),
        ({"id": "r", "answers": [GOOD | {"references": [1]}]}, r"answers\[0\].references"),
    ],
)
def test_other_messages_are_refused_by_field(message, names):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    with pytest.raises(BadMessage, match=names):
        decode_request(body, max_answers=8)


def test_a_small_file_with_a_large_image_is_refused():
    import io
    import zlib

    header = b"\x00\x00\xff\xff" * 2 + b"\x01\x00\x00\x00\x00"  # 65535 x 65535, one bit a pixel
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    content = io.BytesIO(b"\x89PNG\r\n\x1a\n")
    content.seek(8)
    for kind, data in chunks:
        content.write(len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big"))
    image = {IMAGE: data_uri(content.getvalue(), "image/png")}
    with pytest.raises(BadMessage, match=r"65535 x 65535 pixels|decompression bomb|cannot be read"):
        decode_request(json.dumps({"id": "r", "answers": [GOOD | {"image": image}]}).encode(), 8)


@pytest.mark.parametrize("size", [1, 3])
def test_scores_of_another_number_of_answers_are_refused(size):
    output = RewardOutput({"x": np.zeros(2, np.float32)}, {"x": [Status.OK] * 2}, [{}, {}])
    with pytest.raises(BadMessage, match=f"no scores of {size}"):
        decode_output(encode_output(output), size)
