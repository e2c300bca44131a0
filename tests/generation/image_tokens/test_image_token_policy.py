"""Token image generators as policies: what is sampled is what is scored, guided or not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from mmrl.build.datasets import load_samples
from mmrl.build.policies import prepare_samples
from mmrl.config.data import AnswersConfig
from mmrl.config.policy import LoraConfig
from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.data import write_samples
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.policy import Capability
from mmrl.rollout_request import RolloutRequest, RowStart, TargetText
from mmrl.tokens.token_model import Attention
from mmrl.training.rollouts.offline import PreferencePairs, check_answers
from mmrl.training.rollouts.true_pictures import true_pictures
from mmrl.training.run.timers import Phases
from mmrl_kernels.ops.linear_logprob import autograd
from tests.generation.image_tokens.conftest import REQUESTS
from tests.generation.image_tokens.tiny_models import CODES, FAMILIES

GUIDED = ImageTokenSamplingConfig(guidance_scale=3.0, temperature=0.7)
SMALL = LoraConfig(rank=2, alpha=4)


def requests_with(sampling: ImageTokenSamplingConfig) -> list[RolloutRequest]:
    return [replace(request, sampling=sampling) for request in REQUESTS]


def scored(policy, rollout):
    seen = []
    policy.replay(rollout, range(rollout.log_probs.shape[1]), seen.append)
    return seen[0]


def wriggle(policy, size: float = 0.05) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters_to_train().values():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def plain_log_probs(policy, rollout, sampling) -> torch.Tensor:
    """Row by row, without padding, cache or batch: the mixture of the two softmaxes' logits at the temperature."""
    family, rows = policy.image_model, []
    for sample, codes in zip(rollout.samples, torch.tensor(rollout.token_ids), strict=True):
        both = []
        prompt = family.prompt(sample.prompt, sampling.negative_prompt)
        for ids in (prompt.cond, prompt.uncond):
            states = (plain_scale_states if family.scales else plain_states)(family, ids, codes)
            both.append(torch.nn.functional.linear(family.code_states(states), *family.code_head()).double())
        mixed = both[1] + sampling.guidance_scale * (both[0] - both[1])
        rows.append((mixed / sampling.temperature).log_softmax(-1).gather(1, codes[:, None])[:, 0])
    return torch.stack(rows)


def plain_states(family, ids, codes) -> torch.Tensor:
    """Return [T, H], each code after the one before it."""
    embeds, places = [family.embed_text(torch.tensor([ids]))], []
    for number, code in enumerate(codes):
        places.append(sum(each.shape[1] for each in embeds) - 1)
        embeds.append(family.embed_codes(code[None, None]))
        if fixed := family.forced_tokens.get(number + 1):
            embeds.append(family.embed_text(torch.tensor([fixed])))
    return family.body(inputs_embeds=torch.cat(embeds, dim=1)).last_hidden_state[0, places]


def plain_scale_states(family, ids, codes) -> torch.Tensor:
    """Return [T, H]: a pass over the prompt and the scales up to each one, which reads itself whole."""
    table, spec = family.network.get_input_embeddings().weight, family._spec
    embeds, ends, grids, states = [table[token] for token in ids], [len(ids)], [], []
    place, codes = spec.first_place, iter(codes.tolist())
    for rows, columns in family.scales:
        for row in range(rows):
            for column in range(columns):
                coarser = [grid[row * len(grid) // rows][column * len(grid[0]) // columns] for grid in grids]
                embeds.append(table[place] + sum(table[spec.first_code + code] for code in coarser))
                place += 1
        grids.append([[next(codes) for _ in range(columns)] for _ in range(rows)])
        ends.append(len(embeds))
        mask = torch.full((len(embeds), len(embeds)), float("-inf")).triu(1)
        for start, end in pairwise(ends):
            mask[start:end, :end] = 0
        out = family.body(inputs_embeds=torch.stack(embeds)[None], attention_mask=mask.to(table.dtype)[None, None])
        states.append(out.last_hidden_state[0, ends[-2] :])
    return torch.cat(states)


@pytest.mark.parametrize("sampling", [ImageTokenSamplingConfig(), GUIDED], ids=["plain", "guided"])
@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs_equal_a_plain_forward_pass_and_replay(shared_painter, name, sampling):
    policy = shared_painter(name)
    rollout = policy.rollout(requests_with(sampling), seed=0)
    expected = plain_log_probs(policy, rollout, sampling)
    torch.testing.assert_close(rollout.log_probs.double(), expected, rtol=0, atol=2e-5)
    assert policy.replay_gap(rollout) < 2e-5
    wrong = plain_log_probs(policy, rollout, sampling.model_copy(update={"guidance_scale": 1.5}))
    assert (rollout.log_probs - wrong).abs().max() > 1e-2  # a negative control: another mixture is seen


@pytest.mark.parametrize("name", FAMILIES)
def test_rollouts_depend_on_seed_and_prompt(shared_painter, name):
    policy = shared_painter(name)
    first, again, other = (policy.rollout(REQUESTS, seed=seed) for seed in (3, 3, 4))
    assert first.token_ids == again.token_ids and first.token_ids != other.token_ids
    assert torch.equal(first.log_probs, again.log_probs)
    greedy = policy.rollout(requests_with(ImageTokenSamplingConfig(temperature=0)), seed=0)
    assert greedy.token_ids[0] == greedy.token_ids[1] != greedy.token_ids[2]
    assert greedy.media[0].tobytes() == greedy.media[1].tobytes() != greedy.media[2].tobytes()
    assert all(0 <= code < CODES for row in first.token_ids for code in row)
    assert first.mask.all() and first.group_index.tolist() == [0, 0, 1, 1, 1]


@pytest.mark.integration
@pytest.mark.parametrize("sampling", [ImageTokenSamplingConfig(), GUIDED], ids=["plain", "guided"])
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_reach_trained_parameters_only(painter_of, name, sampling):
    policy = painter_of(name)
    rollout = policy.rollout(requests_with(sampling), seed=0)
    policy.replay(rollout, range(rollout.log_probs.shape[1]), lambda now: now.log_probs.sum().backward())
    trained = policy.parameters_to_train()
    untouched = [path for path, p in trained.items() if p.grad is None or not p.grad.any()]
    assert trained and not untouched
    outside = [path for path, p in policy.image_model.network.named_parameters() if path not in trained]
    assert not any(
        "generation_head" in path or "text_model" in path or "layers.0.self" in path for path in outside
    ) or (name == "janus" and all("vision_model" in path for path in outside if "layers.0.self" in path))
    assert not [path for path in trained if "vqmodel" in path or "vision_model" in path]


@pytest.mark.integration
@pytest.mark.parametrize("name", FAMILIES)
def test_guided_gradients_are_those_of_the_mixture(painter_of, name):
    """Against a finite difference of the log-probabilities themselves, along a random direction."""
    policy = painter_of(name)
    policy.image_model.network.double()
    rollout = policy.rollout(requests_with(GUIDED), seed=0)
    policy.replay(rollout, range(rollout.log_probs.shape[1]), lambda now: now.log_probs.double().sum().backward())
    named = policy.parameters_to_train()
    trained, generator = list(named.values()), torch.Generator().manual_seed(2)
    along = [torch.randn(p.shape, generator=generator, dtype=torch.float64) * p.detach().abs().mean() for p in trained]
    for path, direction in zip(named, along, strict=True):
        module = policy.image_model.network.get_submodule(path.rpartition(".")[0])
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            direction[module.padding_idx] = 0.0  # Janus's empty prompt is padding, to which torch gives no gradient
    slope = sum(float((p.grad * d).sum()) for p, d in zip(trained, along, strict=True))

    def total(step: float) -> float:
        with torch.no_grad():
            torch._foreach_add_(trained, along, alpha=step)
            value = plain_log_probs(policy, rollout, GUIDED).sum()
            torch._foreach_add_(trained, along, alpha=-step)
        return float(value)

    assert slope == pytest.approx((total(2e-4) - total(-2e-4)) / 4e-4, rel=1e-2)


@pytest.mark.integration
@pytest.mark.parametrize("train", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_reference_is_the_model_before_training(painter_of, train, tmp_path):
    for name in FAMILIES:
        policy = painter_of(name, train=train, lora=SMALL)
        rollout = policy.rollout(REQUESTS, seed=0)
        wriggle(policy)
        assert policy.replay_gap(rollout) > 1e-3  # the gauge sees moved parameters
        with policy.reference():
            assert policy.replay_gap(rollout) < 2e-5
        policy.save(tmp_path / train / name)
        other = painter_of(name, train=train, lora=SMALL)
        other.load(tmp_path / train / name)
        moved, back = scored(policy, rollout).log_probs, scored(other, rollout).log_probs
        torch.testing.assert_close(moved, back, rtol=0, atol=1e-6)
        assert not list((tmp_path / train / name).rglob("*.bin"))


@pytest.mark.integration
@pytest.mark.parametrize("name", FAMILIES)
def test_fully_trained_folder_loads_as_a_model(painter_of, name, tmp_path):
    policy = painter_of(name)
    wriggle(policy)
    policy.save(tmp_path)
    config = policy.config.model_copy(update={"model": str(tmp_path)})
    again = type(policy).from_config(config, policy.sampling)
    assert again.rollout(REQUESTS, seed=0).token_ids == policy.rollout(REQUESTS, seed=0).token_ids


@pytest.mark.integration
def test_adapters_are_added_to_the_language_model_alone(painter_of):
    for name in FAMILIES:
        names = painter_of(name, train="lora", lora=SMALL).parameters_to_train()
        assert all("lora_" in path and ".layers." in path for path in names)
        assert not any("vision" in path or "vqmodel" in path or "head" in path for path in names)
        chosen = painter_of(name, train="lora", lora=LoraConfig(rank=2, targets=("q_proj",))).parameters_to_train()
        assert {path.split(".lora_")[0].rpartition(".")[2] for path in chosen} == {"q_proj"}


@pytest.mark.integration
@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_checkpointing_changes_no_gradient(painter_of, name):
    grads = []
    for checkpointing in (False, True):
        policy = painter_of(name, gradient_checkpointing=checkpointing)
        rollout = policy.rollout(requests_with(GUIDED), seed=0)
        policy.replay(rollout, range(rollout.log_probs.shape[1]), lambda now: now.log_probs.sum().backward())
        grads.append({path: p.grad for path, p in policy.parameters_to_train().items()})
        assert not policy.image_model.network.training
    for path, gradient in grads[0].items():
        torch.testing.assert_close(grads[1][path], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_independent_of_their_batch(shared_painter, name):
    policy = shared_painter(name)
    assert Capability.SELECT_ROWS in policy.capabilities
    rollout = policy.rollout(requests_with(GUIDED), seed=0)
    cut = rollout.select([4, 0])
    torch.testing.assert_close(scored(policy, cut).log_probs, rollout.log_probs[[4, 0]], rtol=0, atol=2e-5)
    some = []
    policy.replay(rollout, [1, 3], some.append)
    torch.testing.assert_close(some[0].log_probs, rollout.log_probs[:, [1, 3]], rtol=0, atol=2e-5)
    assert some[0].entropy.shape == (5, 2) and (some[0].entropy > 0).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_target_images_are_encoded_to_their_codes(shared_painter, name, tmp_path):
    policy = shared_painter(name)
    drawn = policy.rollout(REQUESTS, seed=0)
    drawn.media[2].save(tmp_path / "targets.png")
    sample = REQUESTS[1].sample
    targets = [
        TargetText(sample, str(tmp_path / "targets.png"), 0),
        TargetText(sample, "", 1, token_ids=tuple(drawn.token_ids[2])),
    ]
    forced = policy.score_targets(targets)
    assert forced.token_ids[0] == policy.image_model.encode([drawn.media[2]])[0].tolist()
    torch.testing.assert_close(forced.log_probs[1], drawn.log_probs[2], rtol=0, atol=2e-5)
    assert policy.replay_gap(forced) < 2e-5
    with pytest.raises(
        DataError, match=r"sample 'long': an image has \d+ codes below 20, but the target has 2 numbers up to 7"
    ):
        policy.score_targets([TargetText(sample, "", 0, token_ids=(3, 7))])
    with pytest.raises(DataError, match="nowhere"):
        policy.score_targets([TargetText(sample, str(tmp_path / "nowhere.png"), 0)])


def test_pairs_and_demonstrations_are_pictures_beside_the_data(shared_painter, tmp_path):
    policy = shared_painter("composite")
    for name in ("a", "b"):
        Image.new("RGB", (8, 8), "red" if name == "a" else "blue").save(tmp_path / f"{name}.png")
    right, wrong = {"image": "a.png"}, {"image": "b.png"}
    write_samples([Sample("x", prompt="?", chosen=right, rejected=wrong, demonstration=[right])], tmp_path / "x.jsonl")
    loaded = load_samples(str(tmp_path / "x.jsonl"))
    samples = prepare_samples(policy, policy.config, AnswersConfig(), policy.sampling, loaded)
    for kind in ("pairs", "demonstrations"):
        check_answers(samples, kind, policy)
    source = PreferencePairs(policy, PromptSampler(samples, 1, seed=0), 2)
    rollout = source.collect(0, 0.0, Phases()).micro_batches[0].rollout
    pictures = [Image.open(tmp_path / name).convert("RGB") for name in ("a.png", "b.png")]
    assert rollout.token_ids == policy.image_model.encode(pictures).tolist()
    assert true_pictures(samples)[0].tobytes() == true_pictures(loaded)[0].tobytes() == pictures[0].tobytes()


def test_top_k_and_top_p_restrict_sampling_but_not_log_probs(shared_painter):
    policy = shared_painter("composite")
    greedy = policy.rollout(requests_with(ImageTokenSamplingConfig(temperature=0)), seed=0)
    for limit in (dict(top_k=1), dict(top_p=1e-6)):
        sampling = ImageTokenSamplingConfig(**limit)
        drawn = policy.rollout(requests_with(sampling), seed=0)
        assert drawn.token_ids == greedy.token_ids
        expected = plain_log_probs(policy, drawn, ImageTokenSamplingConfig())
        torch.testing.assert_close(drawn.log_probs.double(), expected, rtol=0, atol=2e-5)
        assert (drawn.log_probs < 0).all()


def test_invalid_samples_raise(shared_painter):
    policy = shared_painter("composite")
    with pytest.raises(DataError, match="sample 'x' has no 'prompt'"):
        policy.check_sample(Sample("x"))
    with pytest.raises(DataError, match="sample 'x' comes with"):
        policy.check_sample(Sample("x", prompt="p", conditions={"image": "a.png"}))
    with pytest.raises(DataError, match="sample 'short': rows of images"):
        policy.rollout([replace(REQUESTS[0], start=RowStart(prefix="once"))], seed=0)
    with pytest.raises(ValueError, match="share their sampling: make a call for each"):
        policy.rollout([REQUESTS[0], *requests_with(ImageTokenSamplingConfig(temperature=0))], seed=0)


def test_half_precision_trains_float32_parameters(painter_of, tmp_path: Path):
    policy = painter_of("composite", dtype="bfloat16")
    rollout = policy.rollout(requests_with(GUIDED), seed=0)
    assert rollout.log_probs.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in policy.parameters_to_train().values())
    policy.save(tmp_path)
    assert {t.dtype for t in load_file(tmp_path / "language_model" / "model.safetensors").values()} == {torch.float32}


@pytest.mark.parametrize("sampling", [ImageTokenSamplingConfig(), GUIDED], ids=["plain", "guided"])
@pytest.mark.parametrize("name", FAMILIES)
def test_packed_and_fused_log_probs_equal_whole_rows(shared_painter, name, sampling):
    """The requests name one prompt in two groups, apart from one another."""
    policy = shared_painter(name)
    requests = requests_with(sampling)
    rollout = policy.rollout([*requests, replace(requests[0], group=9)], seed=0)
    plain = policy.attention, policy.config
    found = {}
    for kind, attention, fused in (
        ("packed", "mmrl", False),  # of scales the same rows: they are not packed
        ("fused", "mmrl", True),
        ("rows", "sdpa", False),
    ):
        policy.attention = Attention(attention, "a test")
        policy.config = plain[1].model_copy(update={"fused_log_probs": fused})
        now = scored(policy, rollout)
        parameters = policy.parameters_to_train().values()
        gradients = torch.autograd.grad((now.log_probs * ramp(now.log_probs)).sum(), parameters, allow_unused=True)
        found[kind] = now, torch.cat([g.flatten() for g in gradients if g is not None])
    policy.attention, policy.config = plain
    for kind in ("packed", "fused"):
        torch.testing.assert_close(found[kind][0].log_probs, found["rows"][0].log_probs, atol=2e-5, rtol=0)
        torch.testing.assert_close(found[kind][0].entropy, found["rows"][0].entropy, atol=2e-5, rtol=0)
        assert (found[kind][1] - found["rows"][1]).norm() < 2e-5 * found["rows"][1].norm()


@pytest.mark.parametrize("sampling", [ImageTokenSamplingConfig(), GUIDED], ids=["plain", "guided"])
def test_fused_loss_computes_logits_once(shared_painter, sampling, monkeypatch):
    policy = shared_painter("composite")
    rollout = policy.rollout(requests_with(sampling), seed=0)
    weights = ramp(rollout.log_probs)
    monkeypatch.setattr(policy, "config", policy.config.model_copy(update={"fused_log_probs": True}))
    parameters = list(policy.parameters_to_train().values())
    expected = torch.autograd.grad((scored(policy, rollout).log_probs * weights).sum(), parameters, allow_unused=True)
    monkeypatch.setattr(autograd, "_backward", None)
    with policy.fused_loss(lambda log_probs, rows, step_indices: weights[rows, step_indices]):
        now = scored(policy, rollout)
    found = torch.autograd.grad((now.log_probs * weights).sum(), parameters, allow_unused=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def ramp(like: torch.Tensor) -> torch.Tensor:
    """A weight for each, some of them negative."""
    return torch.linspace(-1, 1, like.numel()).view_as(like)
