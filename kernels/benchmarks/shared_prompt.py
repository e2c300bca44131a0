"""`shared_prompt` against as many plain texts, each with a prompt of its own: attention alone, and a small decoder.

Every candidate gives the same outputs and gradients, which is checked first. "of ideal" is the ratio's share of what
sharing can save at most: for attention in pairs of tokens, for a decoder in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from lines import Line
from measure import compare
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mmrl_kernels.ops.shared_prompt import OP, SharedPromptLayout
from mmrl_kernels.ops.shared_prompt.spec import ideal_ratio, pairs

PLAIN, FLEX = "plain SDPA", "FlexAttention, compiled"
GATES = {"cpu": 0.85, "cuda": 0.75}  # of the ideal, for the decoder


@dataclass(frozen=True)
class Sizes:
    """One group of completions of one length, and the model that reads them."""

    completions: int
    prompt: int
    completion: int
    heads: int
    kv_heads: int
    width: int  # of a head
    layers: int

    @property
    def name(self) -> str:
        return f"G{self.completions} P{self.prompt} R{self.completion}"

    @property
    def layout(self) -> SharedPromptLayout:
        return SharedPromptLayout((self.prompt,), ((self.completion,) * self.completions,))

    @property
    def text(self) -> int:
        """Tokens of a prompt with one completion."""
        return self.prompt + self.completion


CASES = {
    "cpu": (Sizes(8, 512, 64, 8, 4, 32, 2), Sizes(16, 1024, 128, 8, 4, 32, 2)),
    "cuda": (Sizes(16, 1024, 128, 32, 8, 128, 2), Sizes(16, 8192, 1024, 32, 8, 128, 1)),  # plain texts: 30 GiB
}
SMOKE = (Sizes(3, 20, 7, 4, 2, 16, 2),)  # too small to win
SMOKE_DECODER = f"{SMOKE[0].name}, decoder"

Results = tuple[Tensor, ...]
Calls = dict[str, Callable[[], Results]]


def lines(device: str, smoke: bool) -> Iterator[Line]:
    """Forward with backward, in float32 on a CPU and in bfloat16 on a GPU."""
    cases = SMOKE if smoke else CASES[device]
    turns = 1 if smoke else 5 if device == "cpu" else 9
    for sizes in cases:
        yield from _decoder(sizes, device, turns)
        yield from _attention(sizes, device, turns)


def _attention(sizes: Sizes, device: str, turns: int) -> Iterator[Line]:
    torch.manual_seed(0)
    layout, dtype = sizes.layout, torch.float32 if device == "cpu" else torch.bfloat16
    heads = (sizes.heads, sizes.kv_heads, sizes.kv_heads, sizes.heads)
    *given, gradient = (torch.randn(layout.tokens, n, sizes.width, device=device, dtype=dtype) for n in heads)
    gradient[: sizes.prompt] = 0  # the plain texts hold the prompt's own outputs often, a pack once
    apart = [_texts(sizes, x) for x in given]
    for x in (*given, *apart):
        x.requires_grad_()

    def packed(function: Callable[..., Tensor]) -> Results:
        out = function(*given, layout, sizes.width**-0.5)
        return out.detach(), *torch.autograd.grad(out, given, gradient)

    def plain(gradient: Tensor) -> Results:
        out = _sdpa(*apart)
        return out.detach(), *torch.autograd.grad(out, apart, gradient)

    calls: Calls = {PLAIN: partial(plain, _texts(sizes, gradient))}
    for backend in OP.backends:  # the reference holds all scores on a GPU
        if backend.name == ("reference" if device == "cpu" else "triton"):
            calls[backend.name] = partial(packed, backend.load())
    if device != "cpu":
        calls[FLEX] = partial(packed, _flex(sizes, device))
    due = _from_texts(sizes, calls[PLAIN]())
    for name, call in calls.items():
        if name != PLAIN:
            found = call()
            _agree(f"{sizes.name}, {name}", (found[0][sizes.prompt :], *found[1:]), due)
    del due
    causal = sizes.completions * sizes.text * (sizes.text + 1) // 2
    yield from _measured(f"{sizes.name}, attention", calls, causal / pairs(layout), device, turns)
    if FLEX in calls:
        calls.pop(PLAIN)
        yield from _measured(f"{sizes.name}, attention", {FLEX: calls.pop(FLEX), **calls}, None, device, turns)


def _decoder(sizes: Sizes, device: str, turns: int) -> Iterator[Line]:
    from transformers import LlamaConfig, LlamaForCausalLM

    from mmrl_kernels.integrations.transformers import packed, use_shared_prompts

    torch.manual_seed(0)
    layout, hidden = sizes.layout, sizes.heads * sizes.width
    config = LlamaConfig(
        vocab_size=256,  # small: what the vocabulary's layer costs is another op's matter
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.text,
        attn_implementation="sdpa",
    )
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    plain_model, packed_model = (LlamaForCausalLM(config).to(device, dtype) for _ in range(2))
    packed_model.load_state_dict(plain_model.state_dict())
    use_shared_prompts(packed_model)
    pack = torch.randint(256, (layout.tokens,), device=device)
    texts, targets = _texts(sizes, pack), pack[sizes.prompt :]
    positions = layout.positions([torch.arange(sizes.prompt, device=device)], [sizes.prompt])
    predicting = torch.tensor(layout.predicting, device=device)

    def results(model: nn.Module, logits: Tensor) -> Results:
        log_probs = logits.float().log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        return log_probs.detach(), *torch.autograd.grad(log_probs.mean(), list(model.parameters()))

    def plain() -> Results:
        asked = torch.arange(sizes.prompt - 1, sizes.text - 1, device=device)
        return results(
            plain_model, plain_model(input_ids=texts, use_cache=False, logits_to_keep=asked).logits.flatten(0, 1)
        )

    def shared() -> Results:
        out = packed_model(
            input_ids=pack[None],
            position_ids=positions[None],
            attention_mask=packed(layout, pack.device),
            use_cache=False,
            logits_to_keep=predicting,
        )
        return results(packed_model, out.logits[0])

    calls: Calls = {PLAIN: plain, "packed": shared}
    _agree(f"{sizes.name}, decoder", shared(), plain())
    yield from _measured(f"{sizes.name}, decoder", calls, ideal_ratio(layout), device, turns)


def _texts(sizes: Sizes, pack: Tensor) -> Tensor:  # [N, ...] -> [G, P + R, ...]
    """Each completion behind a prompt of its own."""
    prompt = pack[: sizes.prompt].expand(sizes.completions, *pack[: sizes.prompt].shape)
    return torch.cat([prompt, pack[sizes.prompt :].unflatten(0, (sizes.completions, -1))], dim=1).detach()


def _from_texts(sizes: Sizes, results: Results) -> Results:
    """Outputs of the completions, and gradients as a pack has them: a prompt's are the sum over its copies."""
    out, *gradients = results
    return out[:, sizes.prompt :].flatten(0, 1), *(
        torch.cat([x[:, : sizes.prompt].sum(0), x[:, sizes.prompt :].flatten(0, 1)]) for x in gradients
    )


def _sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # [G, L, H, D]
    """As transformers calls it: on a CPU the key heads are repeated."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if not q.is_cuda:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.is_cuda).transpose(1, 2)


def _flex(sizes: Sizes, device: str) -> Callable[..., Tensor]:
    tokens = sizes.layout.tokens
    part = torch.cat([
        torch.zeros(sizes.prompt, dtype=torch.long, device=device),
        torch.arange(1, sizes.completions + 1, device=device).repeat_interleave(sizes.completion),
    ])  # fmt: skip

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & ((part[key] == 0) | (part[key] == part[query]))

    mask = create_block_mask(seen, None, None, tokens, tokens, device=device)
    compiled = torch.compile(flex_attention)

    def attention(query: Tensor, key: Tensor, value: Tensor, layout: SharedPromptLayout, scale: float) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        out: Tensor = compiled(q, k, v, block_mask=mask, scale=scale, enable_gqa=True)
        return out[0].transpose(0, 1)

    return attention


def _measured(
    case: str, calls: Mapping[str, Callable[[], Results]], ideal: float | None, device: str, turns: int
) -> Iterator[Line]:
    """Each candidate against the first."""
    measured = compare(calls, turns=turns, device=device)
    baseline, *candidates = measured
    for name in candidates:
        own, peak = measured[name], measured[baseline].peak_mib
        told, gate, passed = case, None, None
        if ideal is not None:
            told = f"{case}: {own.ratio / ideal:.0%} of ideal {ideal:.2f}x"
        if ideal is not None and name == "packed" and case != SMOKE_DECODER:
            gate, passed = f">= {GATES[device]} of ideal", own.ratio >= GATES[device] * ideal
        elif baseline == FLEX:
            gate, passed = ">= FlexAttention", own.ratio >= 1
        yield Line("shared_prompt", told, name, baseline, own.seconds, own.ratio, own.peak_mib, peak, gate, passed)


def _agree(name: str, found: Results, due: Results) -> None:
    allowed = 1e-4 if due[-1].dtype == torch.float32 else 5e-2
    for got, expected in zip(found, due, strict=True):
        error = float((got.float() - expected.float()).norm() / expected.float().norm())
        if not error <= allowed:  # NaN too
            raise RuntimeError(f"{name}: a result is {error:.1e} off that of plain texts")
