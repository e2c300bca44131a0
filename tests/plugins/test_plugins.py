"""Components from outside the package: one of each kind, from a file and from an installed package, is trained with.

`KINDS` has one entry for each kind. To add a kind, add its source, its entry-point group and the overrides that select
it, in which NAME stands for the component's name; `train` runs an iteration with it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.build.training_setup import build_training_setup, objective_class
from mmrl.config import ConfigError, TrainConfig, dump_config
from mmrl.config.loading.load import parse_config
from mmrl.config.validation import validation_errors
from mmrl.rewards.core.suite import RewardSuite
from mmrl.training.objectives.base import check_compatible
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Right, trainer

RECIPE = """
name: plugin
policy: {kind: vlm, model: none}
data: {path: none.jsonl, groups: 4, group_size: 6, micro_batch: 12}
rewards: [{name: right}]
"""

POLICY_LOSS = """
import torch
from mmrl.algorithms import PolicyLoss
from mmrl.config.algorithms.policy_losses import PolicyLossConfig

class Squared(PolicyLossConfig):
    '''The log-probability weighted by its advantage, with a quadratic bound on the change.'''

    strength: float = 1.0

    def loss(self, log_probs, old_log_probs, advantages, mask):
        change = log_probs - old_log_probs
        loss = -advantages * log_probs + self.strength * change**2
        return PolicyLoss(loss.where(mask, 0.0), change.detach().exp(), torch.zeros_like(mask))
"""

ADVANTAGE = """
from mmrl.config.algorithms.advantage import AdvantageConfig

class Scaled(AdvantageConfig):
    '''Rewards minus their mean over the batch, times a factor.'''

    factor: float = 1.0

    def estimate(self, rewards, group_index):
        return (self.factor * (rewards - rewards.nanmean())).nan_to_num(0.0)

    def validation_errors(self, config):
        yield from super().validation_errors(config)
        if self.factor == 0:
            yield "algorithm.advantage.factor: 0 leaves nothing to learn from"
"""

OBJECTIVE = """
from typing import ClassVar
from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.policy import Capability
from mmrl.training.objectives.base import Objective, trained_decisions

class ReinforceObjective(Objective):
    '''Minus the log-probability of each decision, times its advantage.'''

    needs = frozenset({Capability.LOG_PROBS})

    def loss_normalizer(self, batch):
        return batch.scored_rows

    def backward(self, batch, share, seed, metrics):
        mask = trained_decisions(batch)

        def visit(now):
            here = list(now.step_indices)
            loss = -(now.log_probs * batch.step_advantages[:, here] * mask[:, here]).sum()
            (self._config.scale * share / batch.scored_rows * loss).backward()
            metrics.mean("loss", loss.item())

        self._policy.replay(batch.rollout, range(mask.shape[1]), visit)

class Reinforce(AlgorithmConfig):
    '''REINFORCE with a baseline.'''

    objective: ClassVar = ReinforceObjective
    on_decisions: ClassVar = True
    advantage: AdvantageConfig = AdvantageConfig(name="rloo")
    scale: float = 1.0
"""


@dataclass(frozen=True)
class Kind:
    """A kind of component: a component of it from outside the package, and the overrides that select it."""

    group: str
    source: str
    component: str
    overrides: tuple[str, ...]


KINDS = {
    "policy loss": Kind(
        "mmrl.policy_losses", POLICY_LOSS, "Squared", ("algorithm.surrogate={name: NAME, strength: 2}",)
    ),
    "advantage": Kind("mmrl.advantages", ADVANTAGE, "Scaled", ("algorithm.advantage={name: NAME, factor: 3}",)),
    "objective": Kind("mmrl.objectives", OBJECTIVE, "Reinforce", ("algorithm={name: NAME, scale: 2}",)),
}


@pytest.fixture(params=["file", "entry point"])
def select(request, tmp_path, monkeypatch) -> Iterator[Any]:
    """A function that puts a component outside the package and returns the overrides that select it."""
    monkeypatch.chdir(tmp_path)

    def put(kind: Kind) -> list[str]:
        module = f"outside_{kind.component.lower()}"
        (tmp_path / f"{module}.py").write_text(kind.source)
        name = f"{module}.py:{kind.component}"
        if request.param == "entry point":
            name = "outside"
            install(tmp_path, kind.group, f"{name} = {module}:{kind.component}")
            monkeypatch.syspath_prepend(tmp_path)
        return [override.replace("NAME", name) for override in kind.overrides]

    yield put
    for module in [module for module in sys.modules if module.startswith("outside_")]:
        del sys.modules[module]


def install(folder: Path, group: str, line: str) -> None:
    """Write the metadata of an installed distribution that offers one component."""
    info = folder / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line}\n")


def train(config: TrainConfig, run: Path) -> tuple[TokenPolicy, dict[str, float]]:
    """Check a configuration, train the token policy for one iteration and return it with the metrics."""
    policy = TokenPolicy()
    assert validation_errors(config, policy.capabilities) == []
    check_compatible(objective_class(config.algorithm, policy.capabilities), TokenPolicy, config.algorithm.experience)
    setup = build_training_setup(config, policy, questions(), [], RewardSuite([(Right(), 1.0)]))
    metrics, _ = trainer(run, setup.source, objective=setup.objective).iterate()
    return policy, metrics


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_external_component_trains(kind, select, tmp_path):
    config = parse_config(RECIPE, "recipe.yaml", select(kind))
    assert parse_config(dump_config(config), "dump.yaml") == config
    policy, metrics = train(config, tmp_path / "run")
    assert not torch.equal(policy.logits, TokenPolicy().logits) and "loss" in metrics


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_wrong_settings_of_a_component_name_the_right_one(kind, select):
    (override,) = select(kind)
    field = override.rpartition(", ")[2].partition(":")[0]
    with pytest.raises(ConfigError, match=f"x{field} is not a key of {kind.component}: did you mean .*{field}"):
        parse_config(RECIPE, "recipe.yaml", [override.replace(f"{field}:", f"x{field}:")])
    with pytest.raises(ConfigError, match=rf"{field}: got 'many', expected a number"):
        parse_config(RECIPE, "recipe.yaml", [override.rpartition(":")[0] + ": many}"])


def test_components_declare_their_constraints(select):
    (override,) = select(KINDS["advantage"])
    config = parse_config(RECIPE, "recipe.yaml", [override.replace("factor: 3", "factor: 0")])
    assert validation_errors(config) == ["algorithm.advantage.factor: 0 leaves nothing to learn from"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "algorithm.surrogate=clop",
            "algorithm.surrogate: got 'clop', expected clip or cispo or sapo or reinforce or topr or vespo: ",
        ),
        ("algorithm.advantage.name=rlo", "algorithm.advantage.name: got 'rlo', expected grpo or dr_grpo or rloo"),
        ("algorithm.surrogate=nothing.py:Loss", "algorithm.surrogate.name: nothing.py: no such file"),
        ("algorithm.name=wrong.py:Reinforce", "wrong.py has no 'Reinforce'"),
        ("algorithm.advantage.name=wrong.py:Wrong", "wrong.py:Wrong is not an advantage: it must derive from"),
    ],
)
def test_unknown_components_raise_with_their_key(override, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text("class Wrong:\n    pass\n")
    with pytest.raises(ConfigError) as caught:
        parse_config(RECIPE, "recipe.yaml", [override])
    assert message in str(caught.value)


def test_components_made_in_python_load_again(tmp_path, monkeypatch):
    (tmp_path / "outside_python.py").write_text(ADVANTAGE)
    monkeypatch.syspath_prepend(tmp_path)
    import outside_python

    scaled = outside_python.Scaled(factor=2.0)
    assert scaled.name == "outside_python:Scaled"
    config = parse_config(RECIPE, "recipe.yaml").model_copy()
    config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"advantage": scaled})})
    assert parse_config(dump_config(config), "dump.yaml").algorithm.advantage == scaled


@pytest.mark.integration
def test_reading_a_recipe_imports_neither_torch_nor_other_components():
    code = (
        "import sys; from mmrl.config import list_recipes, load_config\n"
        "for recipe in list_recipes(): load_config(recipe.name)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
