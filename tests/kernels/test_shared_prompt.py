import pytest
import torch
import torch.nn.functional as F

from mmrl_kernels.ops.shared_prompt import Group, SharedPromptLayout, Span, shared_prompt_attention
from mmrl_kernels.ops.shared_prompt.branches import Branches, branching_attention
from mmrl_kernels.ops.shared_prompt.spec import SPEC, cost, ideal_ratio, pairs
from mmrl_kernels.ops.shared_prompt.tiles import Sizes, key_tiles, query_tiles
from mmrl_kernels.registry import KernelError

LAYOUTS = {
    "one group": SharedPromptLayout((7,), ((5, 5, 5),)),
    "ragged groups": SharedPromptLayout((5, 3, 7), ((1, 4, 2), (9,), (6, 13))),
    "one completion each": SharedPromptLayout((4, 6), ((3,), (1,))),
    "a prompt without completions": SharedPromptLayout((5, 3, 2), ((2, 3), (), (4,))),
    "prompts alone": SharedPromptLayout((1, 6), ((), ())),
}
HEADS = [(2, 2), (4, 2), (3, 1)]


def tensors(layout, heads, kv_heads, width, dtype=torch.float64, seed=0):
    """Query, key, value and a gradient."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (heads, kv_heads, kv_heads, heads)
    return [torch.randn(layout.tokens, n, width, generator=generator, dtype=torch.float64).to(dtype) for n in sizes]


def visible(layout):
    """[N, N] bool; True = this query looks at this key. Written pair by pair."""
    home = {}
    for number, group in enumerate(layout.groups):
        for part, span in enumerate((group.prompt, *group.completions)):
            home.update((token, (number, part)) for token in range(span.start, span.end))
    return torch.tensor(
        [
            [home[q][0] == home[k][0] and home[k][1] in (0, home[q][1]) and k <= q for k in range(layout.tokens)]
            for q in range(layout.tokens)
        ]
    )


def dense(query, key, value, mask, scale=None):
    """Attention by its definition, over all pairs of tokens."""
    each, scale = query.shape[1] // key.shape[1], query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(each, 1)) * scale
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value.repeat_interleave(each, 1))


def with_gradients(function, query, key, value, gradient):
    inputs = [x.detach().clone().requires_grad_() for x in (query, key, value)]
    out = function(*inputs)
    return out.detach(), *torch.autograd.grad(out, inputs, gradient)


def worst(found, expected):
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_outputs_and_gradients_equal_a_dense_mask(name, heads, kv_heads):
    layout = LAYOUTS[name]
    inputs = tensors(layout, heads, kv_heads, 8)
    mask = visible(layout)
    expected = with_gradients(lambda q, k, v: dense(q, k, v, mask), *inputs)
    assert worst(with_gradients(lambda q, k, v: shared_prompt_attention(q, k, v, layout), *inputs), expected) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_are_within_their_tolerance_of_float64(dtype):
    layout, bound = SharedPromptLayout((33, 17), ((21, 8, 40), (5, 5))), SPEC.tolerances[dtype]
    inputs = tensors(layout, 4, 2, 24, dtype)
    exact = with_gradients(lambda q, k, v: dense(q, k, v, visible(layout)), *(x.double() for x in inputs))
    found = with_gradients(lambda q, k, v: shared_prompt_attention(q, k, v, layout), *inputs)
    for got, expected in zip(found, exact, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected, atol=bound.absolute, rtol=bound.relative)


def test_shared_prompt_equals_separate_texts():
    layout = LAYOUTS["ragged groups"]
    query, key, value, gradient = tensors(layout, 4, 2, 8)

    def apart(query, key, value):
        out = torch.zeros_like(query)
        for group in layout.groups:
            for span in group.completions:
                text = [*range(group.prompt.start, group.prompt.end), *range(span.start, span.end)]
                q, k, v = (x[text].transpose(0, 1)[None] for x in (query, key, value))
                each = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
                out = out.index_copy(0, torch.tensor(text), each)
        return out

    # A text repeats the outputs of its prompt: here the last copy of a prompt's outputs has the gradient.
    expected = with_gradients(apart, query, key, value, gradient)
    found = with_gradients(lambda q, k, v: shared_prompt_attention(q, k, v, layout), query, key, value, gradient)
    assert worst(found, expected) < 1e-12


@pytest.mark.integration
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (2, 1)])
def test_gradcheck(heads, kv_heads):
    layout = SharedPromptLayout((2, 1), ((1, 2), (2,)))
    inputs = [x.requires_grad_() for x in tensors(layout, heads, kv_heads, 3)[:3]]
    assert torch.autograd.gradcheck(lambda q, k, v: shared_prompt_attention(q, k, v, layout), inputs)


def test_scale_and_unusual_strides_are_accepted():
    layout = LAYOUTS["ragged groups"]
    query, key, value, gradient = tensors(layout, 4, 2, 8)
    expected = with_gradients(lambda q, k, v: dense(q, k, v, visible(layout), 0.7), query, key, value, gradient)

    def strange(q, k, v):
        turned = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v))
        return shared_prompt_attention(*turned, layout, 0.7)

    assert worst(with_gradients(strange, query, key, value, gradient.mT.contiguous().mT), expected) < 1e-12


def test_very_large_scores_do_not_overflow():
    """The prompt's scores are far above those of the completion, and the other way round."""
    layout = SharedPromptLayout((3,), ((4, 2),))
    query, key, value, gradient = tensors(layout, 1, 1, 4)
    key[:3] *= 1000
    for signed in (key, -key):
        expected = with_gradients(lambda q, k, v: dense(q, k, v, visible(layout)), query, signed, value, gradient)
        found = with_gradients(lambda q, k, v: shared_prompt_attention(q, k, v, layout), query, signed, value, gradient)
        assert all(x.isfinite().all() for x in found) and worst(found, expected) < 1e-9


def test_nan_in_one_group_stays_in_that_group():
    layout = LAYOUTS["ragged groups"]
    query, key, value, gradient = tensors(layout, 4, 2, 8, torch.float32)
    sound = with_gradients(lambda q, k, v: shared_prompt_attention(q, k, v, layout), query, key, value, gradient)
    broken = layout.groups[1]
    poisoned = slice(broken.prompt.start, broken.answers.end)
    for x in (query, key, value, gradient):
        x[poisoned] = torch.nan
    found = with_gradients(lambda q, k, v: shared_prompt_attention(q, k, v, layout), query, key, value, gradient)
    for got, expected in zip(found, sound, strict=True):
        assert got[poisoned].isnan().all()
        assert torch.equal(torch.cat([got[: poisoned.start], got[poisoned.stop :]]),
                           torch.cat([expected[: poisoned.start], expected[poisoned.stop :]]))  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        SharedPromptLayout((5, 3, 7), ((7,), (9,), (19,))),  # completions that see those before them
        SharedPromptLayout((5, 3, 7), ((1, 2, 4), (9,), (6, 13))),  # one border off
        SharedPromptLayout((12, 12, 26), ((), (), ())),  # no sharing at all
    ],
)
def test_wrong_layouts_change_the_result(wrong):
    """The comparisons above can fail."""
    layout = LAYOUTS["ragged groups"]
    inputs = tensors(layout, 2, 2, 8)
    expected = with_gradients(lambda q, k, v: dense(q, k, v, visible(layout)), *inputs)
    found = with_gradients(lambda q, k, v: shared_prompt_attention(q, k, v, wrong), *inputs)
    assert worst(found, expected) > 1e-2


def rotated(x, positions):
    """Rotary embedding of [N, H, 4]."""
    angles = positions[:, None, None] * torch.tensor([1.0, 0.1], dtype=torch.float64)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)


def test_positions_of_completions_continue_those_of_their_prompt():
    layout = SharedPromptLayout((5, 2), ((3, 4), (2,)))
    query, key, value, _ = tensors(layout, 1, 1, 4)
    positions = layout.positions([torch.arange(5), torch.arange(2)], [5, 2])
    assert positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 0, 1, 2, 3]
    text = [0, 1, 2, 3, 4, 8, 9, 10, 11]  # the first prompt and its second completion
    alone = rotated(query[text], torch.arange(9)), rotated(key[text], torch.arange(9))
    expected = dense(*alone, value[text], torch.ones(9, 9, dtype=torch.bool).tril())

    def error(positions):
        found = shared_prompt_attention(rotated(query, positions), rotated(key, positions), value, layout)
        return float((found[text] - expected).abs().max())

    assert error(positions) < 1e-12
    assert error(torch.arange(layout.tokens)) > 1e-2  # not counted anew for each completion


def test_positions_on_several_axes_continue_equally():
    layout = SharedPromptLayout((4, 1), ((2, 1), (2,)))
    first = torch.tensor([[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]])
    positions = layout.positions([first, torch.zeros(3, 1, dtype=torch.long)], [4, 1])
    assert positions.shape == (3, layout.tokens)
    assert positions[:, 4:].tolist() == [[4, 5, 4, 0, 1, 2]] * 3 and torch.equal(positions[:, :4], first)
    with pytest.raises(KernelError, match="positions of prompts of"):
        layout.positions([first], [4])


def test_predicting_indices_point_to_the_preceding_token():
    layout = SharedPromptLayout((3, 2, 1), ((2, 1), (), (3,)))
    assert layout.predicting == (2, 3, 2, 8, 9, 10)


def test_spans_tile_the_pack_and_know_their_prompt():
    layout = SharedPromptLayout((3, 2, 1), ((2, 1), (), (3,)))
    assert layout.groups[0] == Group(Span(0, 3), (Span(3, 5), Span(5, 6)))
    assert layout.groups[0].answers == Span(3, 6) and len(layout.groups[1].answers) == 0
    assert [token for span in layout.segments for token in range(span.start, span.end)] == list(range(layout.tokens))
    assert layout.parents == (-1, 0, 0, -1, -1, 4)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("sizes", [Sizes(4, 2, 4, 2), Sizes(2, 8, 4, 2), Sizes(64, 64, 4, 2)])
def test_kernel_tiles_cover_each_visible_pair_once(name, sizes):
    """Walks the tables as the kernels do."""
    layout = LAYOUTS[name]
    own = torch.cat([torch.full((len(span),), span.start) for span in layout.segments]).tolist()
    by_queries = torch.zeros(layout.tokens, layout.tokens, dtype=torch.long)
    for start, end, prompt, prompt_end, first, edge in query_tiles(layout, sizes):
        assert (edge - first) % sizes.keys == 0 and end - start <= sizes.queries
        by_queries[start:end, prompt:prompt_end] += 1
        by_queries[start:end, first:edge] += 1
        for row in range(start, end):
            by_queries[row, max(edge, own[row]) : row + 1] += 1
    by_keys = torch.zeros_like(by_queries)
    for start, end, free, last, in_prompt in key_tiles(layout, sizes):
        masked_until = min(start + -(-(free - start) // sizes.queries) * sizes.queries, last)
        by_keys[masked_until:last, start:end] += 1
        for row in range(start, masked_until):
            by_keys[row, (start if in_prompt else max(own[row], start)) : min(row + 1, end)] += 1
    expected = visible(layout).long()
    assert torch.equal(by_queries, expected) and torch.equal(by_keys, expected)
    assert pairs(layout) == int(expected.sum())


def test_branched_rows_see_their_unpadded_prompt_and_themselves():
    generator = torch.Generator().manual_seed(0)
    prompt_key, prompt_value = torch.randn(2, 2, 2, 5, 8, generator=generator, dtype=torch.float64)
    own_key, own_value = torch.randn(2, 3, 2, 4, 8, generator=generator, dtype=torch.float64)
    query = torch.randn(3, 4, 8, generator=generator, dtype=torch.float64)
    hidden = torch.tensor([[True, True, False, False, False], [False] * 5])
    prompt_key[0, :, :2], prompt_value[0, :, :2] = 1e3, 1e3  # seen, it would show
    branches = Branches(torch.tensor([0, 0, 1]), hidden)
    found = branching_attention(query, prompt_key, prompt_value, own_key, own_value, branches)
    for row, prompt in enumerate((0, 0, 1)):
        key = torch.cat([prompt_key[prompt][:, ~hidden[prompt]], own_key[row]], dim=1).transpose(0, 1)
        value = torch.cat([prompt_value[prompt][:, ~hidden[prompt]], own_value[row]], dim=1).transpose(0, 1)
        expected = dense(query[row][None], key, value, torch.ones(1, len(key), dtype=torch.bool))[0]
        torch.testing.assert_close(found[row], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("padding", [None, torch.zeros(3, 5, dtype=torch.bool)])
def test_branched_rows_are_unchanged_when_other_rows_end(padding):
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randn(2, 3, 2, 5, 8, generator=generator)
    own = torch.randn(2, 4, 2, 4, 8, generator=generator)
    query = torch.randn(4, 4, 8, generator=generator)
    branches = Branches(torch.tensor([0, 1, 1, 2]), padding)
    every = branching_attention(query, *prompts, *own, branches)
    for left in ([0], [1, 2], [0, 2], [3]):
        rows = torch.tensor(left)
        found = branching_attention(query[rows], *prompts, *own[:, rows], branches.keep(rows))
        torch.testing.assert_close(found, every[rows])


@pytest.mark.parametrize(
    ("prompts", "completions", "expected"),
    [
        ((), (), "at least one prompt"),
        ((3, 0), ((1,), (1,)), "at least one token"),
        ((3,), ((2, 0),), "at least one token"),
        ((3, 2), ((2,),), "2 prompts and completions of 1 prompts"),
    ],
)
def test_invalid_layouts_raise(prompts, completions, expected):
    with pytest.raises(KernelError, match=expected):
        SharedPromptLayout(prompts, completions)


@pytest.mark.parametrize(
    ("query", "key", "value", "expected"),
    [
        ((6, 2, 8), (6, 2, 4), (6, 2, 8), r"expected \[N, H, D\]"),
        ((6, 2, 8), (6, 2, 8), (6, 1, 8), r"expected \[N, H, D\]"),
        ((1, 6, 2, 8), (1, 6, 2, 8), (1, 6, 2, 8), r"expected \[N, H, D\]"),
        ((6, 4, 8), (6, 3, 8), (6, 3, 8), "must divide"),
        ((7, 2, 8), (7, 2, 8), (7, 2, 8), "7 tokens came, the layout has 6"),
    ],
)
def test_wrong_shapes_raise(query, key, value, expected):
    with pytest.raises(KernelError, match=expected):
        shared_prompt_attention(
            torch.zeros(query), torch.zeros(key), torch.zeros(value), SharedPromptLayout((3,), ((2, 1),))
        )


def test_cost_grows_with_pairs_and_ideal_speedup_with_completions():
    layout = SharedPromptLayout((512,), ((64,) * 8,))
    assert ideal_ratio(layout) == 4.5
    assert cost(layout, 4, 4, 64, 2).flops == 14 * pairs(layout) * 4 * 64
    assert cost(layout, 4, 1, 64, 2).bytes < cost(layout, 4, 4, 64, 2).bytes
    assert ideal_ratio(LAYOUTS["prompts alone"]) == 1


def test_mixed_dtypes_raise():
    x = torch.zeros(6, 2, 8)
    with pytest.raises(KernelError, match="one dtype and device"):
        shared_prompt_attention(x, x, x.bfloat16(), SharedPromptLayout((3,), ((2, 1),)))
