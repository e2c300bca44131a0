"""A sample and what was made of it become one input."""

import pytest
from PIL import Image

from mmrl.data import Sample
from mmrl.rewards import RewardError, reward_input

SAMPLE = Sample(id="s", prompt="two cats", answer=2, task="counting", source="pets", metadata={"box": [0, 0, 1, 1]})


def test_each_kind_of_media_goes_to_its_field():
    image = Image.new("RGB", (2, 2))
    item = reward_input(SAMPLE, image, group=3, id="s-0")
    assert (item.id, item.group, item.prompt, item.image, item.video, item.text) == (
        "s-0",
        3,
        "two cats",
        image,
        None,
        None,
    )
    assert item.references == {"answer": 2, "box": [0, 0, 1, 1]}
    assert item.metadata == {"task": "counting", "source": "pets"}
    assert reward_input(SAMPLE, [image, image], 0, "").video == [image, image]
    assert reward_input(SAMPLE, "2", 0, "").text == "2"


def test_an_unset_answer_leaves_no_reference():
    assert reward_input(Sample(id="s", prompt="a cat", metadata={"answer": 1}), "x", 0, "").references == {"answer": 1}


@pytest.mark.parametrize("media", [None, [], [1, 2], b"bytes"])
def test_media_that_no_reward_takes_are_refused(media):
    with pytest.raises(RewardError, match="sample 's': cannot score a"):
        reward_input(SAMPLE, media, 0, "")
