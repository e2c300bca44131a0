"""Texts that are drawn: one advantage for both parts by hand, a real run of two models, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from mmrl.build.config_checks import check
from mmrl.config.algorithms.advantage import ParetoAdvantage
from mmrl.config.algorithms.drawn_texts import JointGRPOConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.loading.load import load_config
from mmrl.config.sampling import SamplingConfig, TokenSamplingConfig
from mmrl.config.training import OptimizerConfig
from mmrl.data.sample import Sample
from mmrl.data.written_prompts import Captions
from mmrl.errors import ConfigError, RunError
from mmrl.evaluation.evaluate import evaluate
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import Rollout
from mmrl.rollout_request import PromptMixture, RolloutRequest
from mmrl.training.learner import Learner
from mmrl.training.named_model import NamedModel
from mmrl.training.objectives.base import MetricAccumulator, ObjectiveInputs
from mmrl.training.objectives.joint_gradient import JointGradient
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.drawn_texts import DrawnTexts
from tests.training.gaussian_policy import GaussianPolicy
from tests.training.joint_run import PAINTER, joint_run
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import collect, source, trainer


class NumberPainter(GaussianPolicy):
    """A painter whose "picture" of a text has the text's first number, and then its own decisions."""

    sampling = SamplingConfig()

    def rollout(self, requests: Any, seed: int) -> Rollout:
        found = super().rollout(requests, seed)
        words = [(sample.prompt.split() or ["0"])[0] for sample in found.samples]
        return replace(found, media=[f"{word} {own}" for word, own in zip(words, found.media, strict=True)])


class FirstNumber(Reward):
    """1 where the first number is that of the user's answer, and half of the painter's decisions."""

    name, needs, range = "right", ("text", "references.answer"), (-10.0, 10.0)

    def score_one(self, item: RewardInput) -> float:
        word, *own = str(item.text).split()
        return float(word == str(item.references["answer"])[0]) + 0.5 * sum(float(each) for each in own)


def chain(writer: TokenPolicy, painter: NumberPainter) -> DrawnTexts:
    return DrawnTexts(writer, NamedModel(painter), Captions())  # type: ignore[arg-type]


def objective(writer: TokenPolicy, painter: NumberPainter, **settings: Any) -> JointGradient:
    config = JointGRPOConfig(name="joint_grpo", **settings)
    models = {"painter": NamedModel(painter)}  # type: ignore[arg-type]
    return JointGradient.build(config, ObjectiveInputs(writer, TokenSamplingConfig(), models=models))


def test_pictures_are_drawn_of_what_was_written_row_by_row_and_judged_by_the_users_prompt():
    writer, painter = TokenPolicy(), NumberPainter()
    requests = [RolloutRequest(sample, 3, group) for group, sample in enumerate(questions(4))]
    found, texts = chain(writer, painter).rollout(requests, 7), writer.rollout(requests, 7)
    assert found.drawn is not None and found.token_ids == texts.token_ids
    assert [each.prompt for each in found.samples] == [each.prompt for each in texts.samples]
    drawn = [text or sample.prompt for text, sample in zip(texts.media, texts.samples, strict=True)]  # none is refused
    assert [each.prompt for each in found.drawn.samples] == drawn
    assert found.drawn.group_index.tolist() == found.group_index.tolist()
    assert found.media == found.drawn.media and len({*found.media}) == 12  # one picture of each text
    again = chain(writer, painter).rollout(requests, 7)
    assert again.media == found.media and chain(writer, painter).rollout(requests, 8).media != found.media
    assert found.select([0, 1]).drawn is None


def test_a_share_of_the_guidance_is_that_of_the_users_prompt(monkeypatch):
    """The painter draws what was written, beside the user's own words."""
    drawn: list[RolloutRequest] = []
    draw = NumberPainter.rollout
    monkeypatch.setattr(NumberPainter, "rollout", lambda self, all, seed: (drawn.extend(all), draw(self, all, seed))[1])
    writer, requests = TokenPolicy(), [RolloutRequest(sample, 2, group) for group, sample in enumerate(questions(3))]
    found = replace(chain(writer, NumberPainter()), original_prompt=0.25).rollout(requests, 7)
    assert [each.mixture for each in drawn] == [PromptMixture(sample.prompt, 0.25) for sample in found.samples]
    assert [each.sample.prompt for each in drawn] != [sample.prompt for sample in found.samples]
    drawn.clear()
    chain(writer, NumberPainter()).rollout(requests, 7)
    assert len(drawn) == 6 and all(each.mixture is None for each in drawn)


class Modest(FirstNumber):
    """The other way round: the less, the larger the painter's decisions."""

    name = "modest"

    def score_one(self, item: RewardInput) -> float:
        return -sum(float(each) for each in str(item.text).split()[1:])


def test_the_front_of_the_batch_teaches_both_models_and_what_it_dominates_neither():
    """Parrot: against a comparison of all pairs, over the groups and the micro-batches of an iteration."""
    writer, painter = TokenPolicy(), NumberPainter()
    estimator = AdvantageEstimator(ParetoAdvantage(front="batch"), {"right": 1.0, "modest": 1.0})
    suite = RewardSuite([(FirstNumber(), 1.0), (Modest(), 1.0)])
    drawn = source(chain(writer, painter), suite=suite, advantage_estimator=estimator)  # type: ignore[arg-type]
    batches = collect(drawn).micro_batches
    advantages = torch.cat([batch.advantages for batch in batches])
    pairs = []
    for rollout in (batch.rollout for batch in batches):
        for media, sample in zip(rollout.media, rollout.samples, strict=True):
            word, *own = str(media).split()
            total = sum(map(float, own))
            pairs.append((float(word == str(sample.answer)[0]) + 0.5 * total, -total))
    dominated = [any(a >= x and b >= y and (a, b) != (x, y) for a, b in pairs) for x, y in pairs]
    assert len(batches) == 2 and 2 <= dominated.count(False) < 20
    assert (advantages == 0).tolist() == dominated
    joint = objective(writer, painter, picture=GRPOConfig(name="grpo"))
    joint.accumulate(batches, 1.0, [0] * len(batches), MetricAccumulator())
    assert writer.logits.grad.any() and painter.theta.grad.any()
    touched = {int(row) for batch in batches for row in batch.rollout.recording.prompts[batch.advantages > 0]}
    assert {row for row in range(8) if writer.logits.grad[row].any()} == touched


def test_one_advantage_reaches_both_models_by_hand():
    """At ratio 1 the gradient of a decision is -A grad log p, in the mean over its row's decisions, then over rows."""
    writer, painter = TokenPolicy(), NumberPainter()
    joint = objective(writer, painter, picture=GRPOConfig(name="grpo"))
    assert joint.trained == ("policy", "painter")
    batches = collect(source(chain(writer, painter), FirstNumber())).micro_batches  # type: ignore[arg-type]
    metrics = MetricAccumulator()
    joint.accumulate(batches, 1.0, [0] * len(batches), metrics)
    rows = sum(batch.rollout.rows for batch in batches)
    tokens, steps = torch.zeros_like(writer.logits), torch.zeros_like(painter.theta)
    for batch in batches:
        assert batch.advantages.abs().sum() > 1
        recording, mask = batch.rollout.recording, batch.rollout.mask
        p = writer.logits.detach()[recording.prompts].softmax(-1)
        weights = batch.advantages[:, None] * mask / mask.sum(1, keepdim=True) / rows
        one_hot = nn.functional.one_hot(recording.tokens, p.shape[-1])
        tokens.index_add_(0, recording.prompts, -weights[..., None] * (one_hot - p))
        actions = batch.rollout.drawn.recording
        steps -= (batch.advantages[:, None] * actions / painter.std**2 / actions.shape[1] / rows).sum(0)
    torch.testing.assert_close(writer.logits.grad, tokens, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(painter.theta.grad, steps, atol=1e-6, rtol=1e-5)
    assert {"ratio_mean", "painter/ratio_mean", "painter/log_prob_change_max"} <= set(metrics.values())


def test_the_penalty_on_velocities_pulls_the_painter_alone():
    writer, painter = TokenPolicy(), NumberPainter()
    batches = collect(source(chain(writer, painter), FirstNumber())).micro_batches  # type: ignore[arg-type]
    still = [
        replace(each, advantages=0 * each.advantages, step_advantages=0 * each.step_advantages) for each in batches
    ]
    painter.theta.data += torch.tensor([0.3, -0.1])
    joint = objective(writer, painter, picture={"name": "unigrpo", "kl": {"coef": 0.5}})
    joint.accumulate(still, 1.0, [0] * len(still), MetricAccumulator())
    torch.testing.assert_close(painter.theta.grad, 0.5 * 2 * torch.tensor([0.3, -0.1]) / 2)  # a mean over two steps
    assert writer.logits.grad is None or not writer.logits.grad.any()


def test_a_frozen_painter_leaves_the_policy_gradient_of_the_text():
    writer, painter = TokenPolicy(), NumberPainter()
    painter.theta.requires_grad_(False)
    joint = objective(writer, painter)
    batches = collect(source(chain(writer, painter), FirstNumber())).micro_batches  # type: ignore[arg-type]
    joint.accumulate(batches, 1.0, [0] * len(batches), MetricAccumulator())
    assert joint.trained == ("policy",) and writer.logits.grad.any() and painter.theta.grad is None


def test_texts_without_pictures_are_refused():
    writer = TokenPolicy()
    plain = collect(source(writer)).micro_batches
    with pytest.raises(ValueError, match="this micro-batch has none"):
        objective(writer, NumberPainter()).accumulate(plain, 1.0, [0] * len(plain), MetricAccumulator())


def learnt(folder: Path, painter: NumberPainter, **changes: Any) -> tuple[list[dict[str, float]], TokenPolicy]:
    writer = TokenPolicy()
    others = {"painter": Learner(painter, OptimizerConfig(lr=0.05), "float32")} if painter.theta.requires_grad else {}  # type: ignore[arg-type]
    joint = objective(writer, painter, picture={"name": "unigrpo", "clip": {"low": 0.2}, "kl": 0.0})
    drawn = source(chain(writer, painter), FirstNumber())  # type: ignore[arg-type]
    loop = trainer(folder, drawn, policy=writer, objective=joint, others=others, **changes)
    return [loop.iterate()[0] for _ in range(30)], writer


@pytest.mark.integration
def test_both_models_learn_from_one_reward_and_without_the_painter_less_is_won(tmp_path):
    frozen = NumberPainter()
    frozen.theta.requires_grad_(False)
    painter = NumberPainter()
    both, _ = learnt(tmp_path / "both", painter)
    alone, _ = learnt(tmp_path / "alone", frozen)

    def last(rows: list[dict[str, float]]) -> float:
        return sum(row["reward/right"] for row in rows[-5:]) / 5

    assert last(both) > last(alone) + 0.3 > both[0]["reward/right"] + 0.3
    assert (painter.theta > 0.3).all() and (frozen.theta == 0).all() and painter.version == 30
    assert "painter/grad_norm" in both[0] and "painter/grad_norm" not in alone[0]


def test_a_painter_whose_replay_differs_ends_the_run(tmp_path):
    painter = NumberPainter()
    painter.drift = 0.01
    with pytest.raises(RunError, match="replay differs from the rollout by"):
        learnt(tmp_path, painter)


def test_evaluations_judge_pictures_of_what_is_written():
    writer, painter = TokenPolicy(spread=0.0), NumberPainter(std=1e-6)
    with torch.no_grad():
        for row, sample in enumerate(questions()):
            writer.logits[row, 0, int(str(sample.answer)[0])] = 50.0
    scores = RewardSuite([(FirstNumber(), 1.0)])
    found = evaluate(chain(writer, painter), questions(), scores, draws=1, batch=4, seed=0)  # type: ignore[arg-type]
    assert found.values["right"] == pytest.approx([1.0] * 8, abs=1e-4)


FROZEN = PAINTER.replace("train: lora, ", "")
JOINT = "algorithm={name: joint_grpo}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([JOINT], r"algorithm.painter: models has no painter of kind pipeline \(none is\): add one"),
        (["models={painter: {model: 'shapeworld:sums'}}", JOINT], "algorithm.painter: models has no painter of kind"),
        (
            [PAINTER, "models.before={of: painter}", "algorithm={name: joint_grpo, painter: before}"],
            r"algorithm.painter: models has no before of kind pipeline \(painter\)",
        ),
        ([PAINTER], "models.painter.train: no stage trains it"),
        (
            [PAINTER, "algorithm={name: joint_grpo, picture: {name: ppo}}"],
            "algorithm.picture.name: ppo is no policy gr",
        ),
        (
            [PAINTER, "algorithm={name: joint_grpo, picture: {name: ddpo}}"],
            "algorithm.picture.advantage: a text and its",
        ),
        ([PAINTER, "algorithm={name: joint_grpo, picture: {weight: 0.5}}"], "algorithm.picture.weight: each model has"),
        ([FROZEN, "algorithm={name: joint_grpo, picture: {kl: 0.1}}"], "algorithm.picture: painter is not trained"),
        (
            [PAINTER, "algorithm={name: joint_grpo, picture: {kl: {kind: k3, coef: 1}}}"],
            "algorithm.picture: .*k3 is not",
        ),
        ([PAINTER.replace("flow_sde", "ode"), JOINT], "algorithm.picture: sampling.transition.name: the ode draws"),
        ([FROZEN.replace("flow_sde", "ode"), JOINT], "models.painter.sampling.window picks stochastic steps, and the"),
        ([PAINTER, JOINT, "policy.dtype=float16"], "policy.dtype: joint_grpo has two losses"),
        ([PAINTER, JOINT, "data.replay={name: success}"], "data.replay: joint_grpo draws single answers"),
        (
            [PAINTER, "algorithm={name: joint_grpo, mismatch: {cap: 2.0}}"],
            "algorithm.mismatch: it is computed for texts",
        ),
        ([PAINTER, "algorithm={name: mix, terms: [{name: joint_grpo}]}"], "terms.0: joint_grpo has a painter, which a"),
    ],
)
def test_what_cannot_work_is_refused_by_key(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-reasoning", overrides))


def test_pareto_fronts_and_the_users_prompt_go_with_a_painter_and_not_without():
    words = [PAINTER, "algorithm={name: joint_grpo, advantage: {name: pareto, front: batch}}",
             "rewards=[{name: shapeworld}, {name: shapeworld_clip}]", "evaluation.original_prompt=0.5",
             "stages=[{iterations: 1, algorithm: {name: sft}, data: {path: 'shapeworld:sums-few'}}]"]  # fmt: skip
    check(load_config("shapes-reasoning", words))
    with pytest.raises(ConfigError, match=r"evaluation\.original_prompt: grpo draws no texts"):
        check(load_config("shapes-reasoning", ["evaluation.original_prompt=0.5"]))


def test_a_policy_that_draws_is_refused():
    with pytest.raises(ConfigError, match="joint_grpo begins with a text, and this policy writes none"):
        check(load_config("flow-grpo", [JOINT]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return joint_run(tmp_path_factory.mktemp("joint") / "whole")


@pytest.mark.integration
def test_a_run_trains_both_models_and_evaluates_pictures(whole):
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert [row["learning_rate"] for row in trained] == pytest.approx([2e-3, 1e-3, 1e-3])
    assert [row["stage"] for row in trained] == [0, 1, 1] and "painter/grad_norm" not in trained[0]
    assert all(row["grad_norm"] > 0 and row["painter/grad_norm"] > 0 for row in trained[1:])
    assert all(0 <= row["evaluation/shapeworld"] <= 1 for row in rows if row["kind"] == "evaluation")
    folder = whole / "checkpoints/step-3"
    assert (folder / "models/painter/pytorch_lora_weights.safetensors").is_file()
    for part in ("parameters", "parameters.painter"):
        before, after = (load_file(whole / f"checkpoints/step-{step}/trainer/{part}.safetensors") for step in (1, 3))
        assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.integration
def test_a_frozen_painter_may_draw_without_chance(tmp_path):
    drawn_by = FROZEN.replace("transition: {name: flow_sde}, window: {high: 2}", "transition: {name: ode}")
    folder = joint_run(tmp_path / "ode", drawn_by, JOINT, "training.iterations=2")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (learnt,) = [row for row in rows if row["kind"] == "train" and row["stage"] == 1]
    assert learnt["grad_norm"] > 0 and "painter/grad_norm" not in learnt and 0 <= learnt["reward/shapeworld"] <= 1
    assert not (folder / "checkpoints/step-2/models").exists()


@pytest.mark.integration
def test_a_resumed_run_is_the_same_to_the_bit(whole, tmp_path):
    joint_run(tmp_path / "cut", "training.iterations=2")
    joint_run(tmp_path / "cut", resume=True)
    for part in ("parameters", "optimizer", "parameters.painter", "optimizer.painter"):
        name = f"checkpoints/step-3/trainer/{part}.safetensors"
        one, two = load_file(whole / name), load_file(tmp_path / "cut" / name)
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_the_sample_of_a_refused_text_is_the_users(monkeypatch):
    sample = Sample(id="s0", prompt="question 0", answer="1 2")
    monkeypatch.setattr(Captions, "read", lambda *_: None)
    found = chain(TokenPolicy(), NumberPainter()).rollout([RolloutRequest(sample, 2, 0)], 0)
    assert found.drawn is not None and [each.prompt for each in found.drawn.samples] == ["question 0"] * 2
