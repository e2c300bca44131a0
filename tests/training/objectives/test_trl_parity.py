"""Our objectives against the loss code of trl 1.16's own trainers, on one language model: values and gradients.

Both compute every log-prob from the same weights. trl's language-model head works in float32, so this is where the
differences come from; everything else is float64.

What trl divides by is stated by its arguments: `current_gradient_accumulation_steps` (micro-batches of an update),
`num_items_in_batch` (tokens of an update; its `dapo`, `cispo` and `vespo`), `max_completion_length` (its `dr_grpo`).
"""

from __future__ import annotations

import copy

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig as TrlDPOConfig
from trl import DPOTrainer, GRPOTrainer
from trl import GRPOConfig as TrlGRPOConfig

from mmrl.config.algorithms.policy_gradient import (
    BNPOConfig,
    CISPOConfig,
    DAPOConfig,
    DrGRPOConfig,
    GRPOConfig,
    LUSPOConfig,
    SAPOConfig,
    VESPOConfig,
)
from mmrl.config.algorithms.preference import DPOConfig
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.objectives.preference_pairs import PreferenceLearning
from tests.training.objectives.causal_lm import CausalLM, build_model, random_rollout

LOW, HIGH, CEILING, LONGEST = 0.2, 0.28, 1.1, 9
LENGTHS = (6, 3, 1, 4, 2, 5, 6, 3)
OURS = {
    "grpo": GRPOConfig,
    "bnpo": BNPOConfig,
    "dr_grpo": DrGRPOConfig,
    "dapo": DAPOConfig,
    "cispo": CISPOConfig,
    "sapo": SAPOConfig,
    "luspo": LUSPOConfig,
    "vespo": VESPOConfig,
}
GRID = [(name, level) for name in OURS for level in ("token", "sequence")]
SILENT = {
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "activation_checkpointing": False,
    "gradient_checkpointing": False,
}


@pytest.fixture(scope="module")
def policy():
    return CausalLM(build_model())


def tokenizer():
    backend = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2, "b": 3}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


@pytest.fixture(scope="module")
def grpo_trainer(policy, tmp_path_factory):
    """trl's trainer on the policy's own model. What a case changes, it sets: the trainer only reads it."""
    arguments = TrlGRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("grpo")),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=LONGEST,
        beta=0.0,  # set later: with a coefficient here it would load a reference model by name
        epsilon=LOW,
        epsilon_high=HIGH,
        **SILENT,
    )
    trainer = GRPOTrainer(
        model=policy.model,
        processing_class=tokenizer(),
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 8}),
        args=arguments,
    )
    trainer.model.train()
    return trainer


def micro_batch(rollout, advantages):
    scored = torch.ones(rollout.rows, dtype=torch.bool)
    return MicroBatch(rollout, advantages, scored, advantages[:, None].where(rollout.mask, 0.0))


def rows_of(rollout, rows):
    """Return some rows as a separate micro-batch."""
    return type(rollout)(
        samples=rollout.samples[rows],
        group_index=rollout.group_index[rows],
        log_probs=rollout.log_probs[rows],
        mask=rollout.mask[rows],
        channel=rollout.channel[rows],
        media=rollout.media[rows],
        policy_version=rollout.policy_version,
        recording=tuple(part[rows] for part in rollout.recording),
    )


def gradient(policy):
    found = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    policy.model.zero_grad(set_to_none=True)
    return found


def our_update(policy, config, rollout, advantages, cuts):
    """Loss and gradient of one update over micro-batches, as the Trainer adds them up."""
    objective, gauges = PolicyGradient(policy, config, max_decisions=LONGEST), MetricAccumulator()
    batches = [micro_batch(rows_of(rollout, rows), advantages[rows]) for rows in cuts]
    amounts = [objective.loss_normalizer(batch) for batch in batches]
    for batch, amount in zip(batches, amounts, strict=True):
        objective.backward(batch, amount / sum(amounts), 0, gauges)
    return gauges.values()["loss"], gradient(policy)


def their_update(trainer, policy, rollout, advantages, cuts):
    prompts, answers = rollout.recording
    with torch.no_grad(), policy.reference():
        reference = policy.log_probs(prompts, answers)
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = len(cuts)
    total = 0.0
    for rows in cuts:
        loss = trainer.compute_loss(
            trainer.model,
            {
                "prompt_ids": prompts[rows],
                "prompt_mask": torch.ones_like(prompts[rows]),
                "completion_ids": answers[rows],
                "completion_mask": rollout.mask[rows].long(),
                "advantages": advantages[rows],
                "old_per_token_logps": rollout.log_probs[rows],
                "ref_per_token_logps": reference[rows],
                "num_items_in_batch": rollout.mask.sum(),
            },
        )
        loss.backward()
        total += loss.item()
    return total, gradient(policy)


def configured(name, level, beta, dual, kind):
    clip = {"low": LOW, "high": HIGH, "dual": dual}
    if name in ("cispo", "sapo", "vespo"):
        clip = {"low": None, "high": CEILING - 1, "dual": None} if name == "cispo" else {}
    # VESPO's weight is that of the trajectory at every level of trl: it has no other.
    importance = "trajectory" if name == "vespo" else level
    return OURS[name](importance=importance, clip=clip, kl={"coef": beta, "kind": kind})


def set_up(trainer, name, level, beta, dual, kind):
    trainer.loss_type, trainer.importance_sampling_level, trainer.beta = name, level, beta
    trainer.epsilon_low, trainer.epsilon_high = LOW, CEILING if name == "cispo" else HIGH
    trainer.args.delta, trainer.args.use_bias_correction_kl = dual, kind == "weighted_k3"


def both(trainer, policy, name, level, beta=0.0, seed=0, cuts=(slice(None),), dual=None, spread=0.3, kind="k3"):
    rollout = random_rollout(policy, LENGTHS, seed, spread)
    advantages = torch.randn(len(LENGTHS), generator=torch.Generator().manual_seed(seed)).double()
    set_up(trainer, name, level, beta, dual, kind)
    ours = our_update(policy, configured(name, level, beta, dual, kind), rollout, advantages, cuts)
    return ours, their_update(trainer, policy, rollout, advantages, cuts)


def assert_equal(ours, theirs, tolerance=1e-6):
    assert ours[0] == pytest.approx(theirs[0], abs=tolerance)
    assert theirs[1].norm() > 0.1
    assert (ours[1] - theirs[1]).abs().max() < tolerance


@pytest.fixture
def in_float64(grpo_trainer, policy, monkeypatch):
    """trl's loss on log-probs in float64, of the same model: what its head rounds is not in the way."""

    def log_probs(model, input_ids, attention_mask, logits_to_keep, **_):
        found = policy.log_probs(input_ids[:, :-logits_to_keep], input_ids[:, -logits_to_keep:])
        return found, torch.zeros_like(found), None

    monkeypatch.setattr(grpo_trainer, "_get_per_token_logps_and_entropies", log_probs)


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize(("name", "level"), GRID)
def test_loss_and_gradient_equal_trl(grpo_trainer, policy, name, level, beta):
    for seed in range(2):
        assert_equal(*both(grpo_trainer, policy, name, level, beta, seed))


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize(("name", "level"), GRID)
def test_loss_equals_trl_up_to_rounding(grpo_trainer, policy, in_float64, name, level, beta):
    for seed in range(3):
        assert_equal(*both(grpo_trainer, policy, name, level, beta, seed), tolerance=1e-7)


@pytest.mark.parametrize(("name", "level"), GRID)
def test_micro_batched_gradient_equals_trl(grpo_trainer, policy, in_float64, name, level):
    """Two micro-batches of unlike token counts: bnpo's mean of means, dapo's mean over all, and the rest."""
    cuts = (slice(0, 4), slice(4, 8))
    assert sum(LENGTHS[:4]) != sum(LENGTHS[4:])
    cut = both(grpo_trainer, policy, name, level, beta=0.04, cuts=cuts)
    assert_equal(*cut, tolerance=1e-7)
    whole = both(grpo_trainer, policy, name, level, beta=0.04)[0]
    assert ((cut[0][1] - whole[1]).norm() < 1e-6) == (name != "bnpo")


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_dual_clip_is_delta_of_trl(grpo_trainer, policy, in_float64, name, level):
    settings = {"spread": 0.8, "seed": 1}
    with_it = both(grpo_trainer, policy, name, level, dual=1.4, **settings)
    assert_equal(*with_it, tolerance=1e-7)
    without = both(grpo_trainer, policy, name, level, **settings)
    assert (with_it[0][1] - without[0][1]).norm() > 1e-2


@pytest.mark.parametrize("name", OURS)
def test_weighted_penalty_is_the_default_of_trl(grpo_trainer, policy, in_float64, name):
    """At token level. At sequence level trl weighs each token's penalty by the ratio of its sequence; we never do."""
    settings = {"name": name, "level": "token", "beta": 0.4}
    weighted = both(grpo_trainer, policy, kind="weighted_k3", **settings)
    assert_equal(*weighted, tolerance=1e-7)
    plain = both(grpo_trainer, policy, **settings)
    assert (weighted[0][1] - plain[0][1]).norm() > 1e-3


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("grpo", {"clip": {"low": LOW, "high": HIGH - 0.1}}),
        ("grpo", {"clip": {"low": LOW, "high": HIGH}, "aggregate": "token"}),
        ("grpo", {"clip": {"low": LOW, "high": HIGH}, "importance": "sequence"}),
        ("dr_grpo", {"clip": {"low": LOW, "high": HIGH}, "length": LONGEST + 1}),
        ("cispo", {"clip": {"high": CEILING}}),
        ("sapo", {"temperature": {"negative": 1.2}}),
        ("vespo", {"importance": "sequence"}),
        ("vespo", {"gamma": {"k_negative": 2.0}}),
    ],
)
def test_parity_test_detects_different_settings(grpo_trainer, policy, in_float64, name, change):
    """The control: the same comparison fails where something else is computed."""
    rollout = random_rollout(policy, LENGTHS, seed=0)
    advantages = torch.randn(len(LENGTHS), generator=torch.Generator().manual_seed(0)).double()
    set_up(grpo_trainer, name, "token", 0.0, None, "k3")
    ours = our_update(policy, OURS[name](**change), rollout, advantages, [slice(None)])
    theirs = their_update(grpo_trainer, policy, rollout, advantages, [slice(None)])
    assert (ours[1] - theirs[1]).abs().max() > 1e-4


@pytest.mark.integration
def test_clip_is_active_in_the_parity_cases(policy):
    for name, level in GRID:
        gauges = MetricAccumulator()
        batch = micro_batch(random_rollout(policy, LENGTHS, seed=0), torch.tensor([1.0, -1.0] * 4).double())
        config = configured(name, level, 0.0, None, "k3")
        PolicyGradient(policy, config, max_decisions=LONGEST).backward(batch, 1.0, 0, gauges)
        assert gradient(policy).any()  # and cleared for the next
        assert (gauges.values()["clip_fraction"] > 0.05) == (name not in ("sapo", "vespo")), (name, level)


# Pairs ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dpo_trainer(policy, tmp_path_factory):
    trainer = DPOTrainer(
        model=policy.model,
        ref_model=copy.deepcopy(policy.model),
        processing_class=tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": ["a"], "chosen": ["a"], "rejected": ["b"]}),
        args=TrlDPOConfig(output_dir=str(tmp_path_factory.mktemp("dpo")), beta=0.5, **SILENT),
    )
    next(iter(trainer.ref_model.parameters())).data = policy.moved
    return trainer


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*is deprecated:FutureWarning")  # trl 1.16's own
@pytest.mark.parametrize(("ours", "theirs"), [("sigmoid", "sigmoid"), ("ipo", "ipo"), ("bco", "bco_pair")])
def test_preference_losses_equal_trl(dpo_trainer, policy, ours, theirs):
    """trl's batch is [all chosen, all rejected]; ours has the two of a pair beside each other."""
    for seed in range(3):
        rollout = random_rollout(policy, LENGTHS, seed, spread=0.0)
        objective, gauges = PreferenceLearning(policy, DPOConfig(loss=ours, beta=0.5)), MetricAccumulator()
        objective.backward(micro_batch(rollout, torch.ones(len(LENGTHS)).double()), 1.0, 0, gauges)
        expected = gradient(policy)
        order = [*range(0, len(LENGTHS), 2), *range(1, len(LENGTHS), 2)]
        prompts, answers = (part[order] for part in rollout.recording)
        written = rollout.mask[order].long()
        dpo_trainer.loss_types, dpo_trainer.loss_weights = [theirs], [1.0]
        loss = dpo_trainer.compute_loss(
            dpo_trainer.model,
            {
                "input_ids": torch.cat([prompts, answers], 1),
                "attention_mask": torch.cat([torch.ones_like(prompts), written], 1),
                "completion_mask": torch.cat([torch.zeros_like(prompts), written], 1),
            },
        )
        loss.backward()
        assert_equal((gauges.values()["loss"], expected), (loss.item(), gradient(policy)))
