"""Faults within a run: gradients, rewards, data, and settings that were edited between runs."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from mmrl.data import write_samples
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.errors import DataError, RunError
from mmrl.training.monitors import ZeroAdvantageMonitor
from mmrl.training.run.display import QuietDisplay
from mmrl_shapeworld.shipped_models import PIPELINE
from mmrl_shapeworld.splits import samples
from tests.training.conftest import Nearness
from tests.training.test_faults_disk import error_of
from tests.training.test_trainer import lines


class Listening(QuietDisplay):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


# Gradients


def test_non_finite_gradients_change_no_state(make_trainer):
    trainer = make_trainer(optimizer={"ema": 0.9}, training={"iterations": 6, "save_every": 2})

    def spoil(gradient):
        return gradient * (float("nan") if trainer.step == 4 else 1.0)

    trainer.policy.theta.register_hook(spoil)
    with pytest.raises(RunError, match=r"the gradient's norm is nan at iteration 5"):
        trainer.train()
    kept = trainer.checkpoints.load_state()
    assert kept.step == 4 and [row["step"] for row in lines(trainer.run)] == [1, 2, 3, 4]
    assert torch.equal(trainer.policy.theta, kept.tensors["parameters"]["theta"])  # in memory, too
    assert torch.equal(trainer.learner.average.state_dict()["theta"], kept.tensors["average"]["theta"])
    assert all(tensor.isfinite().all() for part in kept.tensors.values() for tensor in part.values())


# Rewards


@pytest.mark.parametrize("broken", [1.0, 0.75])
def test_too_many_failed_scores_stop_and_save_the_run(make_trainer, broken):
    reward = Nearness()
    trainer = make_trainer(reward=reward, training={"iterations": 6, "save_every": 2})
    reward.fails_on = lambda item: trainer.step >= 3 and int(item.id.split("/")[1]) < 32 * broken
    with pytest.raises(RunError, match=rf"only {1 - broken:.0%} of the answers could be scored"):
        trainer.train()
    assert trainer.checkpoints.load_state().step == 2


def test_fully_unscored_iterations_change_nothing_if_allowed(make_trainer):
    reward = Nearness()
    display = Listening()
    trainer = make_trainer(
        reward=reward, display=display, training={"iterations": 4, "save_every": 2, "min_valid_share": 0.0}
    )
    reward.fails_on = lambda item: trainer.step < 2
    trainer.train()
    rows = lines(trainer.run)
    assert [row["reward/total"] is None for row in rows] == [True, True, False, False]
    assert [row["grad_norm"] > 0 for row in rows] == [False, False, True, True]
    assert display.messages == ["iteration 1: in every group all rewards are equal, or missing, so it taught nothing"]


@pytest.mark.integration
def test_constant_rewards_are_reported_once_and_periodically(make_trainer):
    class Constant(Nearness):
        name = "constant"

        def score_one(self, item):
            return -1.0

    display = Listening()
    trainer = make_trainer(reward=Constant(), display=display, training={"iterations": 25, "save_every": 50})
    trainer.train()
    assert torch.equal(trainer.policy.theta.detach(), torch.zeros(2))
    assert [text.partition(":")[0] for text in display.messages] == ["iteration 1", "iteration 10", "iteration 20"]
    assert "for 10 iterations in a row" in display.messages[1] and "data.group_size" in display.messages[1]


def test_informative_iterations_restart_the_zero_advantage_count():
    messages: list[str] = []
    watch = ZeroAdvantageMonitor(messages.append)
    for step, share in enumerate([1.0, 0.5, 1.0, 1.0, math.nan, 0.0], start=1):
        watch.update(step, share)
    assert [text.partition(":")[0] for text in messages] == ["iteration 1", "iteration 3"]


# Data


def train(fork_server, folder, data, *changes):
    words = ["data.path=" + data, "data.groups=1", "data.group_size=2", "run.dir=run", *changes]
    return fork_server.start(folder, "train", "quickstart", *words)


@pytest.mark.integration
def test_empty_datasets_leave_no_run(fork_server, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/empty.jsonl").write_text("\n")
    assert error_of(train(fork_server, tmp_path / "a", "empty.jsonl")) == "empty.jsonl: holds no samples\n"
    assert not (tmp_path / "a/run").exists()


@pytest.mark.integration
def test_runs_that_trained_nothing_do_not_block_their_folder(fork_server, tmp_path):
    words = ["data.validation=p.txt", "data.heldout=null", "training.iterations=1", "evaluation.diversity_prompts=0"]
    words += ["evaluation.rewards=[]", "rewards=[{name: mine.py:score}]"]
    folder, broken = tmp_path / "a", "def score(image): return None\nscore.range = (0.0, 1.0)\n"
    folder.mkdir()
    (folder / "p.txt").write_text("a red circle\na blue square\n")
    (folder / "mine.py").write_text(broken)
    assert "only 0% of the answers could be scored" in error_of(train(fork_server, folder, "p.txt", *words))
    stale = folder / "run/samples/step-0/0001-0.png"
    assert stale.exists() and len(lines(folder / "run")) == 1
    (folder / "mine.py").write_text(broken.replace("None", "id(image) % 7 / 7"))
    again = [*words, "evaluation.prompts=1"]
    assert train(fork_server, folder, "p.txt", *again).wait() == 0
    assert [(row["kind"], row["step"]) for row in lines(folder / "run")] == [
        ("evaluation", 0), ("train", 1), ("evaluation", 1)
    ]  # fmt: skip
    assert not stale.exists()
    assert "contains a run already" in error_of(train(fork_server, folder, "p.txt", *again), 2)


@pytest.mark.integration
def test_unreadable_images_are_named_before_training(fork_server, tmp_path):
    folder = tmp_path / "a"
    (folder / "pictures").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "pictures/1.png")
    (folder / "pictures/2.png").write_bytes(b"no picture")
    rows = [Sample(id=str(n), prompt="make it red", conditions={"image": f"pictures/{n}.png"}) for n in (1, 2, 3)]
    write_samples(rows, folder / "edits.jsonl")
    unreadable = "cannot be read as a picture (cannot identify image file): repair it, or leave it out"
    assert error_of(train(fork_server, folder, "edits.jsonl")).splitlines() == [
        f"pictures/2.png: {unreadable} (sample '2')",
        "pictures/3.png: there is no such file (sample '3')",
    ]
    assert not (folder / "run").exists()


def test_resume_rejects_edited_prompts():
    before = [Sample(id=str(n), prompt=f"{n} dogs") for n in range(4)]
    after = [*before[:3], Sample(id="3", prompt="3 cats")]
    state = PromptSampler(before, 2, seed=0).state_dict()
    PromptSampler(list(before), 2, seed=0).load_state_dict(state)
    with pytest.raises(DataError, match="not the one that the run began with"):
        PromptSampler(after, 2, seed=0).load_state_dict(state)


@pytest.mark.integration
def test_truncated_prompts_are_named_and_trained(fork_server, tmp_path):
    """The embedded pipeline reads 12 tokens; here its third tokenizer, which knows silence alone, reads words."""
    model = tmp_path / "model"
    model.mkdir()
    for part in PIPELINE.iterdir():
        if part.name != "tokenizer_3":
            (model / part.name).symlink_to(part)
    words = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", pad_token="?").save_pretrained(model / "tokenizer_3")
    rows = samples("development")[:4]
    rows[1] = replace(rows[1], prompt="a red circle" + " and a red circle" * 3)
    write_samples(rows, tmp_path / "a/data.jsonl")
    changes = ["data={path: data.jsonl, groups: 1, group_size: 2}", "evaluation={}", "training.iterations=1"]
    child = fork_server.start(
        tmp_path / "a", "train", "quickstart", *changes, "sampling.steps=2", f"policy.model={model}", "run.dir=run"
    )
    assert child.wait() == 0, child.output_text()
    assert "1 of 4 prompts are longer than the 12 tokens that the text encoders read" in child.output_text()
    assert f"{rows[1].id!r} (17 tokens)" in child.output_text()


# Settings


@pytest.mark.integration
@pytest.mark.parametrize(
    "old, new, named",
    [
        ("lr: 0.001", "lr: 0.01", "optimizer.lr is 0.01, and the run was trained with 0.001"),
        ("name: shapeworld\n", "name: compressibility\n", "rewards is "),
        ("iterations: 4", "iterations: 9", "training.iterations is 9, and the run was trained with 4"),  # cosine
        ("max_sequence_length: 1", "max_sequence_length: 2", "sampling.pipeline_args.max_sequence_length is 2"),
    ],
)
def test_resume_rejects_edited_settings_by_key(fork_server, straight, tmp_path, old, new, named):
    folder = tmp_path / "b"
    shutil.copytree(straight[0].parent, folder)
    config = folder / "run/config.yaml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    messages = error_of(fork_server.start(folder, "train", "--resume", "run"), 2)
    assert f"run/config.yaml: {named}" in messages and "Put it back to resume the run" in messages
    assert "run/config.yaml: " in messages and len(messages.splitlines()) == 2


@pytest.mark.integration
def test_resume_accepts_changeable_settings(fork_server, straight, tmp_path):
    folder = tmp_path / "b"
    shutil.copytree(straight[0].parent, folder)
    config = folder / "run/config.yaml"
    config.write_text(config.read_text().replace("save_every: 1", "save_every: 2"))
    child = fork_server.start(folder, "train", "--resume", "run")
    assert child.wait() == 0, child.output_text()
