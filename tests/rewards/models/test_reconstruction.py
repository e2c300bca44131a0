"""The reward of a picture or a caption by what it brings back of another picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.data.sample import Sample
from mmrl.rewards import RewardInput, Status, load
from mmrl.rewards.core.cache import cacheable
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardContext
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl_shapeworld.captions import Caption, Clause, sample_scene
from mmrl_shapeworld.scenes import draw
from mmrl_shapeworld.shipped_models import CLIP


def scene(caption: Caption, seed: int) -> Image.Image:
    return draw(sample_scene(caption, np.random.default_rng(seed)))


RED, BLUES = Caption((Clause(1, "red", "circle"),)), Caption((Clause(3, "blue", "square"),))
DRAWN = {"a red circle": [scene(RED, 1), scene(RED, 2)], "three blue squares": [scene(BLUES, 3), scene(BLUES, 4)]}


class FixedPainter:
    """A model that draws two captions, and remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int, int]] = []

    def pictures(self, samples: Sequence[Sample], seed: int, draws: int = 1) -> list[list[Any]]:
        self.calls.append(([each.prompt for each in samples], seed, draws))
        return [DRAWN[each.prompt][:draws] for each in samples]


def answer(row: int, text: str | None = None, image: Image.Image | None = None, **references: Any) -> RewardInput:
    known = {"images": [scene(RED, 1)]} | references
    return RewardInput(str(row), 0, "Describe.", text=text, image=image, references=known)


def cosine(one: Image.Image, other: Image.Image) -> float:
    """By the model itself, in float64."""
    encoder = load_encoder("test", str(CLIP))
    with torch.no_grad():
        vectors = encoder.image_features(encoder.pixels([one, other])).double()
    return float(vectors[0] @ vectors[1] / (vectors[0].norm() * vectors[1].norm()))


def reward(**args: Any) -> Any:
    return load("reconstruction", model=str(CLIP), device="cpu", **args)


def test_a_picture_is_compared_as_it_is():
    rows = [answer(0, image=scene(RED, 1)), answer(1, image=scene(RED, 9)), answer(2, image=scene(BLUES, 3))]
    values = reward().score(rows).values["reconstruction"]
    assert values[0] == pytest.approx(1.0, abs=1e-5)
    assert values[1:].tolist() == pytest.approx([cosine(scene(RED, 1), each.image) for each in rows[1:]], abs=1e-5)
    assert values[0] > values[1] > values[2]


@pytest.mark.integration
def test_a_text_has_the_mean_of_what_is_drawn_of_it_in_one_call():
    painter = FixedPainter()
    rows = [answer(0, "three blue squares"), answer(1, " a red circle\n"), answer(2, "  ")]
    found = reward(painter="painter", draws=2).score(rows, RewardContext(models={"painter": painter}, seed=7))
    own = scene(RED, 1)
    expected = [sum(cosine(own, each) for each in DRAWN[text]) / 2 for text in ("three blue squares", "a red circle")]
    assert found.values["reconstruction"].tolist() == pytest.approx([*expected, -1.0], abs=1e-5)
    assert found.status["reconstruction"] == [Status.OK, Status.OK, Status.INVALID]
    assert painter.calls == [(["three blue squares", "a red circle"], 7, 2)]
    assert expected[1] > expected[0] + 0.2  # a wrong caption is worse


def test_what_cannot_be_compared_is_no_number():
    painted = reward(painter="painter")
    rows = [answer(0, "a red circle"), answer(1, image=scene(RED, 1), images=[]), answer(2, image=scene(RED, 1))]
    found = painted.score(rows)
    assert math.isnan(found.values["reconstruction"][0])
    assert "no model painter that draws" in found.detail[0]["reconstruction"]
    assert found.status["reconstruction"][1:] == [Status.ERROR, Status.OK]
    assert "names no painter" in reward().score(rows[:1]).detail[0]["reconstruction"]
    with pytest.raises(RewardError, match="draws is 0"):
        reward(draws=0)


def test_it_asks_a_model_that_draws_and_is_not_cached_then():
    painted, plain = reward(painter="p"), reward()
    assert painted.models == painted.painters == ("p",) and plain.models == plain.painters == ()
    assert not cacheable(painted) and cacheable(plain)
