"""`mmrl train reward`: from pairs of pictures to a folder that any run, and any trainer, loads as a reward."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rewards import RewardError, RewardInput, RewardSuite, load
from mmrl.workflows.train_reward import _with_pictures_of, load_reward_recipe, train_reward
from tests.understanding.media import as_png

KINDS = ["bradley_terry", "gaussian"]


def drawn(red: int, seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 60, (32, 32, 3))
    noise[..., 0] += red
    return Image.fromarray(noise.astype(np.uint8))


def picture(red: int, seed: int) -> str:
    return as_png(drawn(red, seed))


def pair(number: int, **changed) -> Sample:
    return Sample(
        f"p{number}",
        prompt="a red circle",
        chosen=picture(180, 2 * number),
        rejected=picture(0, 2 * number + 1),
        **changed,
    )


@pytest.fixture
def data(tmp_path):
    def write(samples):
        path = tmp_path / "pairs.jsonl"
        path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in samples))
        return path

    return write


def config_of(path, *overrides):
    short = ["training.steps=60", "training.batch=16", "head.hidden=16"]
    return load_reward_recipe(
        "shapes-preferences", [f"data.path={path}", f"data.validation={path}", "labels={}", *short, *overrides]
    )


def score(folder, **args):
    items = [
        RewardInput(id=str(red), group=0, prompt="a red circle", image=drawn(red, 900 + red)) for red in (180, 90, 0)
    ]
    return RewardSuite([(load("learned", model=str(folder), device="cpu", **args), 1.0)]).score(items).values


def test_pictures_of_pairs_lie_beside_the_data_file_as_paths_or_as_images(tmp_path, monkeypatch):
    drawn(180, 0).save(tmp_path / "a.png")
    monkeypatch.chdir("/")
    uri = picture(0, 1)
    (placed,) = _with_pictures_of(str(tmp_path / "pairs.jsonl"), [Sample("1", chosen={"image": "a.png"}, rejected=uri)])
    assert (placed.chosen, placed.rejected) == (str(tmp_path / "a.png"), uri)
    (placed,) = _with_pictures_of(str(tmp_path / "pairs.jsonl"), [Sample("1", chosen=["a.png"], rejected="b.png")])
    assert (placed.chosen, placed.rejected) == ([str(tmp_path / "a.png")], "b.png")


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_become_a_reward_that_ranks_new_pictures_and_says_how_sure_it_is(data, tmp_path, kind):
    path = data(pair(number) for number in range(24))
    done = train_reward(config_of(path, f"head.kind={kind}", "ensemble=2"), tmp_path / "model")
    assert done.quality.accuracy == {"overall": 1.0}
    assert "| overall | 1.000 |" in (done.folder / "README.md").read_text()
    values = score(done.folder)
    assert values["learned"][0] > values["learned"][1] > values["learned"][2]
    assert (values["learned_spread"] > 0).all()
    doubtful = score(done.folder, pessimism=1.0)
    assert doubtful["learned"] == pytest.approx(values["learned"] - values["learned_spread"], abs=1e-5)
    again = train_reward(config_of(path, f"head.kind={kind}", "ensemble=2"), tmp_path / "again")
    assert np.array_equal(score(again.folder)["learned"], values["learned"])


@pytest.mark.integration
def test_scores_have_gradients_in_the_pixels(data, tmp_path):
    done = train_reward(config_of(data(pair(number) for number in range(8)), "ensemble=1"), tmp_path / "model")
    reward = load("learned", model=str(done.folder), device="cpu")
    images = torch.rand(2, 3, 32, 32, requires_grad=True)
    items = [RewardInput(id=str(n), group=0, prompt="a red circle") for n in range(2)]
    reward.score_tensor(images, items).sum().backward()
    assert images.grad is not None and images.grad.abs().sum() > 0


@pytest.mark.integration
def test_axes_may_disagree_and_scores_may_be_absolute(data, tmp_path):
    axes = {"redness": "chosen", "darkness": "rejected"}
    path = data(pair(number, metadata={"axes": axes}) for number in range(24))
    done = train_reward(config_of(path, "axes=[redness, darkness]", "ensemble=1"), tmp_path / "axes")
    red, dark = (score(done.folder, axis=axis)["learned"] for axis in ("redness", "darkness"))
    assert red[0] > red[2] and dark[0] < dark[2]
    rated = [
        Sample(f"s{red}", prompt="a red circle", images=(picture(red, red),), answer=red / 18)
        for red in range(0, 181, 6)
    ]
    done = train_reward(
        config_of(data(rated), "head.kind=pointwise", "ensemble=1", "training.steps=200"), tmp_path / "scores"
    )
    assert done.quality.rank_correlation[0] > 0.9
    values = score(done.folder)["learned"]
    assert values[0] > values[1] > values[2]


@pytest.mark.slow
def test_raters_of_opposite_tastes_have_latent_vectors(data, tmp_path):
    def judged(number):
        likes_dark = number % 2 == 1
        own = pair(number, rater=f"r{number % 8}")
        return replace(own, chosen=own.rejected, rejected=own.chosen) if likes_dark else own

    path = data(judged(number) for number in range(96))
    settings = ("raters={latent: 2, context: 4}", "ensemble=1", "training.steps=200")
    done = train_reward(config_of(path, *settings), tmp_path / "model")
    assert done.quality.accuracy["overall"] > 0.95
    bright, dark = (score(done.folder, rater=rater)["learned"] for rater in ("r0", "r1"))
    assert bright[0] > bright[2] and dark[0] < dark[2]
    with pytest.raises(RewardError, match="tells raters apart: name one of r0, r1"):
        score(done.folder)
    with pytest.raises(RewardError, match="has not seen 'r99'"):
        score(done.folder, rater="r99")


@pytest.mark.integration
def test_what_cannot_be_learnt_from_is_named(data, tmp_path):
    with pytest.raises(DataError, match=r"'p0': head.kind bradley_terry needs pictures in chosen and rejected"):
        train_reward(config_of(data([replace(pair(0), chosen=None)])), tmp_path / "a")
    with pytest.raises(DataError, match="'p0' names no rater"):
        train_reward(config_of(data([pair(0)]), "raters={}"), tmp_path / "b")
    with pytest.raises(DataError, match=r"rater 'r' has 1 pairs, and raters.context alone takes 8"):
        train_reward(config_of(data([pair(0, rater="r")]), "raters={}"), tmp_path / "c")
    with pytest.raises(DataError, match=r"metadata.axes.overall is 'left'; it is one of chosen, rejected, equal"):
        train_reward(config_of(data([pair(0, metadata={"axes": {"overall": "left"}})])), tmp_path / "d")
    undecided = [pair(number, metadata={"axes": {"redness": "chosen"}}) for number in range(4)]
    with pytest.raises(DataError, match=r"pairs.jsonl: no sample has a better answer on the axis 'rednes' of axes"):
        train_reward(config_of(data(undecided), "axes=[redness, rednes]", "training.steps=1"), tmp_path / "e")
    rated = [Sample(f"s{n}", prompt="a red circle", images=(picture(n, n),), answer={"redness": n}) for n in range(4)]
    with pytest.raises(DataError, match=r"pairs.jsonl: no sample has a score on the axis 'overall' of axes"):
        train_reward(config_of(data(rated), "head.kind=pointwise", "training.steps=1"), tmp_path / "f")
    with pytest.raises(ConfigError, match=r"command line: training.stepz is not a key"):
        config_of("x.jsonl", "training.stepz=3")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        train_reward(config_of(data([pair(0)])), tmp_path / "full")
    with pytest.raises(RewardError, match="is no folder of `mmrl train reward`"):
        load("learned", model=str(tmp_path / "full"))


@pytest.mark.integration
def test_the_command_trains_and_prints_the_card(data, tmp_path):
    path = data(pair(number) for number in range(16))
    arguments = [f"data.path={path}", f"data.validation={path}", "labels={vote: {members: 2, flip: 0.1}}"]
    arguments += ["ensemble=1", "training.steps=20", f"out={tmp_path / 'model'}"]
    result = CliRunner().invoke(app, ["train", "reward", "shapes-preferences", *arguments])
    assert result.exit_code == 0, result.output
    assert "flipped labels" in result.output and "| overall |" in result.output
    printed = CliRunner().invoke(app, ["train", "reward", "shapes-preferences", "--dry-run"])
    assert printed.exit_code == 0 and "kind: bradley_terry" in printed.output
    missing = CliRunner().invoke(app, ["train", "reward"])
    assert missing.exit_code != 0


@pytest.mark.slow
def test_three_wrong_labels_of_ten_are_survived(tmp_path):
    done = train_reward(load_reward_recipe("shapes-preferences"), tmp_path / "model")
    assert done.quality.accuracy["overall"] > 0.9
    assert done.quality.calibration["overall"] < 0.06
