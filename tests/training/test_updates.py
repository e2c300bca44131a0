"""Updates of the Trainer: chunks of experience, weights of micro-batches, learning rates of parameters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mmrl.config.algorithms.policy_gradient import DAPOConfig
from mmrl.training.experience import Experience
from tests.training.objectives.scored_batches import batch_of, cut
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import source, trainer


class TwoPaces(TokenPolicy):
    """The table as a sum of two: one learns at a tenth of the rate, and one at all of it."""

    @property
    def logits(self) -> torch.Tensor:
        return self.fast + self.slow

    @logits.setter
    def logits(self, table: nn.Parameter) -> None:
        self.fast, self.slow = table, nn.Parameter(torch.zeros_like(table))

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        return {"slow": self.slow, "fast": self.fast}

    def lr_scale(self, name: str) -> float:
        return {"slow": 0.1, "fast": 1.0}[name]

    def save(self, folder) -> None:
        save_file({"slow": self.slow.detach(), "fast": self.fast.detach()}, folder / "tables.safetensors")

    def load(self, folder) -> None:
        for name, tensor in load_file(folder / "tables.safetensors").items():
            getattr(self, name).data.copy_(tensor)


def test_parameters_have_separate_learning_rates(tmp_path):
    """Both tables have equal gradients, so the first step of AdamW moves each by its learning rate."""
    policy = TwoPaces()
    before = policy.fast.detach().clone()
    trainer(tmp_path, source(policy), lr=0.05).iterate()
    slow, fast = policy.slow.detach(), policy.fast.detach() - before
    assert fast.abs().max().item() == pytest.approx(0.05, rel=1e-3)
    torch.testing.assert_close(slow, 0.1 * fast, rtol=1e-4, atol=1e-7)


def test_learning_rates_survive_a_checkpoint(tmp_path):
    straight, broken = (trainer(tmp_path / name, source(TwoPaces())) for name in ("a", "b"))
    straight.train()
    for _ in range(2):
        broken._step(stop_requested=lambda: False)
    again = trainer(tmp_path / "b", source(TwoPaces()))
    again.resume()
    assert again.step == 2
    again.train()
    assert [group["lr_scale"] for group in again.learner.optimizer.param_groups] == [0.1, 1.0]
    for name, parameter in straight.learner.parameters.items():
        assert torch.equal(parameter, again.learner.parameters[name]), name
    tensors = [t.checkpoints.load_state().tensors["optimizer"] for t in (straight, again)]
    assert tensors[0].keys() == tensors[1].keys() and len(tensors[0]) == 6
    assert all(torch.equal(one, tensors[1][name]) for name, one in tensors[0].items())


@pytest.mark.parametrize(
    ("batches", "updates", "sizes"),
    [(4, 2, [2, 2]), (5, 2, [2, 3]), (3, 4, [1, 1, 1]), (7, 3, [2, 3, 2]), (1, 1, [1])],
)
def test_micro_batches_are_distributed_evenly(tmp_path, batches, updates, sizes):
    run = trainer(tmp_path, source(), training={"updates": updates})
    micro_batches = [SimpleNamespace(number=n) for n in range(batches)]
    shares = run._split(micro_batches)
    assert sorted(map(len, shares)) == sorted(sizes)
    assert [batch for share in shares for batch in share] == micro_batches


def test_token_mean_is_over_all_tokens_of_an_update(tmp_path):
    gradients = []
    for at in ([], [1, 2, 5]):
        policy = TokenPolicy(length=5)
        run = trainer(tmp_path / str(at), source(policy), DAPOConfig())
        run.optimizer_config = run.optimizer_config.model_copy(update={"max_grad_norm": 1e9})
        batch = batch_of(policy, [1.0, -0.5, 0.3, -0.8, 0.2, float("nan"), -1.0, 0.9])
        run.source = SimpleNamespace(collect=lambda *_, batch=batch, at=at: Experience(cut(batch, *at), {}))
        metrics, _ = run.iterate()
        gradients.append(policy.logits.grad.clone())
        assert metrics["replay_gap"] == 0
    torch.testing.assert_close(*gradients)
    assert gradients[0].norm() > 0.05
