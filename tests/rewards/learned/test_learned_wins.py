"""Judges of several tasks and criteria: a pair that one query decides one way, another decides the other way."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rewards import RewardError, RewardInput, load
from mmrl.rewards.core.reward_io import RewardContext, reward_input
from mmrl.rewards.learned.judge_inputs import JudgeInputs, cropped, query_features
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl.workflows.train_reward import load_reward_recipe, train_reward
from mmrl_shapeworld.shipped_models import CLIP
from tests.understanding.media import as_png

CORNER = Image.fromarray(np.pad(np.full((8, 8), 255, np.uint8), ((4, 20), (4, 20))))


def coloured(red: int, seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 60, (32, 32, 3))
    noise[..., 0] += red
    return Image.fromarray(noise.astype(np.uint8))


def pair(number: int) -> Sample:
    """Return a pair of which the red picture is the better one of a fill, and the dark one of a removal."""
    sides = as_png(coloured(180, 2 * number)), as_png(coloured(0, 2 * number + 1))
    task = ("fill", "removal")[number % 2]
    chosen, rejected = sides if task == "fill" else sides[::-1]
    return Sample(f"p{number}", prompt="a red circle", chosen=chosen, rejected=rejected, task=task,
                  metadata={"criterion": "residue" if number % 2 else "structure"})  # fmt: skip


class SamePicture:
    """A model that draws the same picture of all samples."""

    def __init__(self, *drawn: Image.Image) -> None:
        self._drawn = drawn

    def pictures(self, samples, seed, draws=1):
        return [list(self._drawn[:draws]) for _ in samples]


def trained(folder, samples, *changes):
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in samples))
    keys = [f"data.path={path}", f"data.validation={path}", "encoder.model=shapeworld", "encoder.region=null"]
    short = ["training={steps: 120, batch: 16}", "head.hidden=16"]
    return train_reward(load_reward_recipe("onereward-clip-vit-l", [*keys, *short, *changes]), folder / "model")


@pytest.fixture(scope="module")
def queried(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("queried"), map(pair, range(32)))


def chance(model, red: int, other: int, task: str, criterion, draws: int = 1) -> float:
    reward = load("learned_wins", model=str(model.folder), reference="start", draws=draws, device="cpu")
    sample = Sample("a", prompt="a red circle", task=task, metadata={"criterion": criterion})
    item = reward_input(sample, coloured(red, 901), group=0, id="a")
    context = RewardContext(models={"start": SamePicture(coloured(other, 902), coloured(180, 903))})
    return float(reward.score([item], context).values["learned_wins"][0])


@pytest.mark.integration
def test_a_pair_is_decided_by_the_query(queried, tmp_path):
    assert queried.quality.accuracy["overall"] == 1.0
    fill, removal = (chance(queried, 180, 0, *query) for query in (("fill", "structure"), ("removal", "residue")))
    assert fill > 0.9 and removal < 0.1
    without = trained(tmp_path, map(pair, range(32)), "encoder.query=[]")  # the control: labels contradict one another
    assert 0.3 < without.quality.accuracy["overall"] < 0.7
    assert chance(without, 180, 0, "fill", "structure") == chance(without, 180, 0, "removal", "residue")


@pytest.mark.integration
def test_the_score_is_a_probability_that_does_not_prefer_a_place(queried):
    forth, back = chance(queried, 180, 0, "fill", "structure"), chance(queried, 0, 180, "fill", "structure")
    assert forth + back == pytest.approx(1.0, abs=0.02)  # the noise of the two pictures differs
    reward = load("learned_wins", model=str(queried.folder), reference="start", device="cpu")
    item = reward_input(replace(pair(0), chosen=None, rejected=None), coloured(90, 5), group=0, id="a")
    same = reward.score([item], RewardContext(models={"start": SamePicture(coloured(90, 5))}))
    assert same.values["learned_wins"][0] == pytest.approx(0.5)


@pytest.mark.integration
def test_several_criteria_and_draws_count_alike(queried):
    each = [chance(queried, 60, 0, "fill", criterion) for criterion in ("structure", "residue")]
    assert chance(queried, 60, 0, "fill", ["structure", "residue"]) == pytest.approx(np.mean(each))
    draws = [chance(queried, 60, other, "fill", "structure") for other in (0, 180)]
    both = chance(queried, 60, 0, "fill", "structure", draws=2)
    assert both == pytest.approx(np.mean(draws), abs=0.03)
    assert draws[0] != draws[1]


def test_each_input_changes_the_features():
    encoder = load_encoder("learned_wins", str(CLIP))
    facts = {"prompt": "a red circle", "subject": "a blue square", "mask_image": as_png(CORNER), "task": "fill"}
    inputs = JudgeInputs("subject", "mask_image", ("task",))
    plain = coloured(0, 1)
    inside, outside = plain.copy(), plain.copy()
    inside.paste((240, 0, 0), (4, 4, 12, 12))
    outside.paste((240, 0, 0), (20, 20, 28, 28))
    width = encoder.embed_texts(["a"]).shape[1]
    found = query_features(encoder, [plain, inside, outside], [facts] * 3, inputs)
    assert found.shape == (3, 7 * width)
    region = found[:, 3 * width : 6 * width]
    assert close(region[0], region[2]) and not close(region[0], region[1])
    changed = {"task": {"task": "removal"}, "subject": {"subject": "a green circle"}}
    for key, change in changed.items():
        other = query_features(encoder, [plain], [{**facts, **change}], inputs)
        assert close(other[:, -width:], found[:1, -width:]) == (key != "task")
        assert close(other[:, width : 2 * width], found[:1, width : 2 * width]) == (key != "subject")
    same = query_features(encoder, [plain], [{**facts, "prompt": "something else"}], inputs)
    assert close(same, found[:1])


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, atol=1e-4)


def test_the_region_is_the_square_around_its_mask_and_stays_in_the_picture():
    numbered = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    tall = Image.fromarray(np.pad(np.full((4, 2), 255, np.uint8), ((2, 2), (0, 6))))  # rows 2 to 5, columns 0 and 1
    rows = np.asarray(numbered)[2:6, 0:4].astype(float)  # the box is two columns wide: the square begins at the edge
    found = np.asarray(cropped(numbered, tall)).astype(float)
    assert found.shape == (8, 8) and found.min() >= rows.min() - 1 and found.max() <= rows.max() + 1
    assert found.mean() == pytest.approx(rows.mean(), abs=0.6)
    whole = Image.new("L", (16, 16), 255)
    assert np.array_equal(np.asarray(cropped(numbered, whole)), np.asarray(numbered))
    with pytest.raises(DataError, match="marks nothing"):
        cropped(numbered, Image.new("L", (8, 8)))


def test_queries_that_are_missing_or_too_many_are_named(queried, tmp_path):
    inputs = JudgeInputs(query=("task", "criterion"))
    sample = Sample("a", prompt="x", task="fill", metadata={"criterion": ["alignment", "structure"]})
    assert [each["criterion"] for each in inputs.queries(sample)] == ["alignment", "structure"]
    with pytest.raises(DataError, match="sample 'a': criterion is None"):
        inputs.queries(replace(sample, metadata={}))
    twice = replace(pair(0), metadata={"criterion": ["structure", "residue"]})
    with pytest.raises(DataError, match="one label and 2 queries by task, criterion"):
        trained(tmp_path, [twice])
    with pytest.raises(RewardError, match="load it with the reward learned_wins"):
        load("learned", model=str(queried.folder))
    with pytest.raises(ConfigError, match="query are of name: clip"):
        load_reward_recipe("shapes-answers", ["encoder.query=[task]"])
    reward = load("learned_wins", model=str(queried.folder), reference="start", device="cpu")
    lacking = reward_input(replace(sample, metadata={}), coloured(1, 1), group=0, id="a")
    context = RewardContext(models={"start": SamePicture(coloured(0, 1))})
    alone = RewardInput("a", 0, "x", image=coloured(1, 1))
    scored_later = reward_input(sample, coloured(1, 1), group=0, id="b")
    kinds = [each["learned_wins"].kind for each in reward.score([lacking, alone], context).failures]
    assert kinds == ["missing", "missing"]
    outside = reward.score([scored_later])
    assert outside.failures[0]["learned_wins"].kind == "no_model"
    assert "no model start that draws" in outside.detail[0]["learned_wins"]
