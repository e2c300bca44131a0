"""Models beside the policy: snapshots that follow it, exactly resumed, and the handle that rewards have."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.config.named_models import NamedModelConfig
from mmrl.errors import ConfigError
from mmrl.rewards.core.cache import cacheable
from mmrl.rewards.core.reward import Reward, Scored
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.core.text_scoring import TextQuery
from mmrl.training.run_models import NamedModels
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import source, trainer


def models(policy: TokenPolicy, **configured: Mapping[str, Any]) -> NamedModels:
    sections = {name: NamedModelConfig(**section) for name, section in configured.items()}
    loaded = {name: TokenPolicy(seed=9) for name, section in sections.items() if section.model}
    return NamedModels(policy, sections, loaded, rows=3)


def test_snapshots_follow_as_configured():
    policy = TokenPolicy()
    start = policy.logits.detach().clone()
    found = models(
        policy,
        start={"of": "policy"},
        slow={"of": "policy", "ema": 0.75},
        stepped={"of": "policy", "every": 2},
        rare={"of": "policy", "ema": 0.5, "every": 2},
    )
    for iteration, value in enumerate((1.0, 3.0), start=1):
        with torch.no_grad():
            policy.logits.fill_(value)
        found.finish_iteration(iteration)

    def seen(name: str) -> torch.Tensor:
        with found[name].weights():
            return policy.logits.detach().clone()

    assert torch.equal(seen("start"), start) and (seen("policy") == 3).all()
    torch.testing.assert_close(seen("slow"), 0.75 * (0.75 * start + 0.25) + 0.25 * 3)
    assert (seen("stepped") == 3).all()
    torch.testing.assert_close(seen("rare"), 0.5 * start + 0.5 * 3)
    assert (policy.logits == 3).all()
    assert {name.partition("/")[0] for name in found.state_dict()} == {"slow", "stepped", "rare"}


def test_a_model_takes_the_parameters_of_another_and_of_a_snapshot():
    policy = TokenPolicy()
    found = models(policy, other={"model": "x"}, start={"of": "policy"}, slow={"of": "policy", "ema": 0.5})
    other, start = found["other"].policy, policy.logits.detach().clone()
    with torch.no_grad():
        policy.logits.fill_(1.0)
    found.finish_iteration(1)
    found.copy("policy", "other")
    assert (other.logits == 1).all() and other.logits.data_ptr() != policy.logits.data_ptr()
    found.copy("slow", "other")
    torch.testing.assert_close(other.logits.detach(), 0.5 * start + 0.5)
    assert (policy.logits == 1).all()
    found.copy("start", "policy")
    assert torch.equal(policy.logits.detach(), start)


def test_models_of_other_sizes_cannot_begin_as_each_other():
    policy = TokenPolicy(length=5)
    found = models(policy, other={"model": "x"})
    with pytest.raises(ConfigError, match="other cannot begin as policy"):
        found.copy("policy", "other")


def test_a_scorer_computes_equal_texts_once_and_in_calls_of_some_rows():
    policy = TokenPolicy()
    found = models(policy, teacher={"model": "x"})
    calls: list[int] = []
    answer = found["teacher"].policy.score_targets

    def counted(targets: Sequence[Any]) -> Any:
        calls.append(len(targets))
        return answer(targets)

    found["teacher"].policy.score_targets = counted
    one, two, three, four = (TextQuery(sample, "2 1") for sample in questions()[:4])
    scored = found.scorers["teacher"].log_probs([four, one, two, one, three])
    assert calls == [3, 1]
    assert np.array_equal(scored[1], scored[3]) and len(scored[0]) == 3
    logits = found["teacher"].policy.logits.detach().log_softmax(-1)
    assert scored[0].tolist() == pytest.approx([float(logits[3, step, token]) for step, token in enumerate((2, 1, 0))])
    assert not np.allclose(scored[1], found.scorers["policy"].log_probs([one])[0])


class Likely(Reward):
    """The probability of an answer under the slow model."""

    name, needs, range = "likely", ("text", "sample"), (0.0, 1.0)
    models = ("slow",)

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    def score_one(self, item: RewardInput) -> float:
        raise NotImplementedError

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        self.seen.append((len(items), threading.current_thread().name))
        queries = [TextQuery(item.sample, str(item.text)) for item in items if item.sample is not None]
        return [float(np.exp(each.mean())) for each in context.models["slow"].log_probs(queries)]


def test_a_reward_that_asks_a_model_waits_for_all_rollouts_and_is_never_cached(tmp_path: Path):
    policy, reward = TokenPolicy(), Likely()
    found = models(policy, slow={"of": "policy", "ema": 0.9})
    own = source(policy=policy, reward=reward, models=found.scorers)
    trainer(tmp_path / "run", own, models=found, training={"iterations": 2}).train()
    assert [rows for rows, _ in reward.seen] == [24, 24]  # two calls of 12 rows, scored together
    assert not cacheable(reward) and own.suite.models == ("slow",)


@pytest.mark.integration
def test_a_run_with_snapshots_is_resumed_to_the_bit(tmp_path: Path):
    def made():
        policy = TokenPolicy()
        found = models(policy, slow={"of": "policy", "ema": 0.9}, late={"of": "policy", "every": 3})
        own = source(policy=policy, reward=Likely(), models=found.scorers)
        return trainer(tmp_path / "run", own, models=found), found

    straight, first = made()
    straight.train()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-6")
    resumed, second = made()
    resumed.resume()
    resumed.train()
    assert torch.equal(straight.policy.logits, resumed.policy.logits)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
