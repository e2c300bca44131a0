"""A unified model that draws and answers with the same weights, by turns in one run (`models.NAME.shares`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmrl.build.config_checks import check
from mmrl.build.load_models import build_learners, build_models
from mmrl.build.policies import build_policy
from mmrl.config.loading.load import load_config
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rewards.core.text_scoring import TextQuery
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld.scenes import Scene, Thing, draw, picture_uri
from tests.training.killed_runs import KilledRun
from tests.training.quickstart_run import assert_same

PICTURE = picture_uri(draw(Scene((Thing("red", "circle", 0.5, 0.5, 0.4),)), 32))
QUESTION = Sample("ask", prompt="what colour has the circle ?", images=(PICTURE,), answer="red")
CAPTION = Sample("draw", prompt="a red circle")
WORDS = [
    "rounds=2",
    "stages.0={iterations: 1, train: painter, rewards: [{name: picture_questions}], data: {groups: 2, group_size: 3}}",
    "stages.1={iterations: 1, rewards: [{name: chart_relaxed}]}",
    "data.groups=8",
    "data.group_size=4",
    "data.validation=null",
    "training={iterations: 4, save_every: 1}",
    "evaluation={}",
    "run={dir: run, display: plain}",
]
RUN = KilledRun("shapes-unified", WORDS)


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory) -> tuple[Path, float]:
    return RUN.undisturbed(fork_server, tmp_path_factory.mktemp("unified"))


def loaded(*words: str):
    torch.manual_seed(0)
    config = load_config("shapes-unified", list(words))
    check(config)
    policy = build_policy(config.policy, config.sampling)
    models = build_models(config, policy)
    return policy, models["painter"].policy, models, build_learners(config, models)


def moved(policy, sample: Sample, seed: int = 0) -> set[str]:
    """Names of the parameters that the probability of answers to a sample has a gradient at."""
    rollout = policy.rollout([RolloutRequest(sample, n=2, group=0)], seed)
    for parameter in policy.parameters_to_train().values():
        parameter.grad = None
    policy.replay(rollout, range(rollout.mask.shape[1]), lambda now: now.log_probs[rollout.mask].sum().backward())
    return {name for name, p in policy.parameters_to_train().items() if p.grad is not None and p.grad.abs().sum() > 0}


def colour(models) -> float:
    return float(models.handles["policy"].log_probs([TextQuery(QUESTION, "red")])[0].sum())


@pytest.mark.integration
def test_both_uses_have_the_same_weights_and_each_moves_its_own_part_of_them():
    policy, painter, models, learners = loaded()
    own, others = policy.parameters_to_train(), painter.parameters_to_train()
    assert own.keys() == others.keys() and all(own[name] is others[name] for name in own)
    assert set(learners) == {"painter"} and set(models.painters) == {"painter"} and set(models.scorers) == {"policy"}
    looking, drawing = moved(policy, QUESTION), moved(painter, CAPTION)
    inside = {name for name in own if ".language_model.layers." in name}
    assert inside and inside <= looking and inside <= drawing
    assert any("vision_model" in name for name in looking) and any("aligner" in name for name in looking)
    assert any("generation_head" in name for name in drawing)
    assert not any("generation_" in name for name in looking) and not any("vision_model" in name for name in drawing)
    assert not any("vqmodel" in name for name in own)


@pytest.mark.integration
def test_what_one_use_learns_changes_the_other_and_both_have_one_reference():
    policy, painter, models, learners = loaded()
    rollout = painter.rollout([RolloutRequest(CAPTION, n=2, group=0)], 0)
    before, pictures = colour(models), [each.tobytes() for each in rollout.media]
    assert painter.replay_gap(rollout) < 2e-5
    moved(painter, CAPTION)
    learners["painter"].update(1, 1)
    assert colour(models) != before and painter.replay_gap(rollout) > 1e-4
    assert (painter.version, policy.version) == (1, 0)
    for use in (policy, painter):
        with use.reference():
            assert colour(models) == before
            again = painter.rollout([RolloutRequest(CAPTION, n=2, group=0)], 0)
            assert [each.tobytes() for each in again.media] == pictures
    answers = policy.rollout([RolloutRequest(QUESTION, n=2, group=0)], 0)
    assert policy.replay_gap(answers) < 2e-5


@pytest.mark.integration
def test_a_painter_that_is_not_trained_trains_nothing_more_than_answers_need():
    policy, painter, _, learners = loaded("models.painter.train=none", "models.painter.optimizer=null", "stages=[]",
                                          "rounds=1")  # fmt: skip
    assert not learners and not any("generation_" in name for name in policy.parameters_to_train())
    assert painter.rollout([RolloutRequest(CAPTION, n=1, group=0)], 0).media[0].size == (32, 32)


@pytest.mark.integration
def test_adapters_serve_both_uses(tmp_path):
    policy, painter, models, _ = loaded("policy.train=lora", "models.painter.train=lora", "policy.vision.train=false",
                                        "policy.connector.train=false")  # fmt: skip
    names = list(policy.parameters_to_train())
    assert names == list(painter.parameters_to_train()) and all("lora" in name for name in names)
    rollout = painter.rollout([RolloutRequest(CAPTION, n=2, group=0)], 0)
    before = colour(models)
    with torch.no_grad():
        for name, parameter in painter.parameters_to_train().items():
            if "lora_B" in name:
                parameter.add_(0.05)
    assert colour(models) != before and painter.replay_gap(rollout) > 1e-4
    painter.save(tmp_path / "painter")
    policy.save(tmp_path / "policy")
    one, other = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("painter", "policy"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.integration
def test_the_run_alternates_and_asks_about_what_it_drew(undisturbed):
    run, _ = undisturbed
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert [row["stage"] for row in trained] == [0, 1, 0, 1]
    assert all(row["replay_gap"] < 1e-4 and row["grad_norm"] > 0 for row in trained)
    assert all(row["prompts/written_share"] == 1.0 for row in trained if row["stage"] == 1)
    state = json.loads((run / "checkpoints/step-4/trainer/state.json").read_text())
    assert state["updates"] == 2 and state["others"]["painter"]["updates"] == 2
    folder = run / "checkpoints/step-4"
    own, others = (load_file(each / "model.safetensors") for each in (folder, folder / "models/painter"))
    assert own.keys() == others.keys() and all(torch.equal(own[name], others[name]) for name in own)


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(4))
def test_a_kill_at_a_random_moment_changes_nothing(fork_server, undisturbed, tmp_path, draw):
    run, seconds = undisturbed
    RUN.kill(fork_server, tmp_path, draw, after=draw, steps=4, seconds=seconds)
    RUN.finish(fork_server, tmp_path)
    assert_same(run, tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["models.painter.model=x"], "is the policy that draws: set kind to image_tokens, and leave model out"),
        (["models.painter.kind=pipeline"], "shares: policy is the policy that draws: set kind"),
        (["models.painter.train=lora"], "models.painter.train: the policy trains these weights with full"),
        (["optimizer.ema=0.9"], "models.painter.shares: a moving average follows the updates of one of the two"),
        (["models.painter.optimizer.ema=0.9"], "models.painter.shares: a moving average"),
        (["run.servers={urls: ['http://localhost:1']}"], "models.painter.shares: servers have the weights"),
        (["models.painter.train=none", "models.painter.optimizer=null"], "stages.0.train: painter is not trained"),
        (["data.prompts.by=policy"], r"data.prompts.by: policy is no model of the run that draws pictures \(painter\)"),
        (["data.prompts.reader.name=captions"], "data.prompts.by: painter is no model of the run that writes texts"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_by_key(words, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-unified", words))


def test_a_model_that_only_answers_draws_nothing():
    config = load_config("shapes-unified", ["policy.model=shapeworld"])
    with pytest.raises(ConfigError, match=r"painter\.shares: a qwen3_vl draws nothing: policy\.model is one of janus"):
        build_models(config, build_policy(config.policy, config.sampling))
