"""Counting bytes: against sums done by hand, autograd's own hooks and the allocator's own events."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from mmrl.generation.memory.meta_run import AllocationTracker, FullMaskMode, fused_attention


def test_allocation_tracker_ignores_views_and_subtracts_freed_tensors():
    before = torch.zeros(1000)
    with AllocationTracker() as counted:
        made = torch.zeros(100)
        kept = [made.view(10, 10), made[3:], before.view(10, 100), before.add_(1)]
        assert (counted.now, counted.peak) == (400, 400)
        made = made * 2
        assert (counted.now, counted.peak) == (800, 800)
    kept.clear()
    assert counted.now == 400  # outside as well
    counted.restart()
    assert counted.peak == 400
    del made
    assert (counted.now, counted.peak) == (0, 400)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_saved_activations_equal_those_of_autograd(device):
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).to(device)
    saved: dict[int, int] = {}
    owned = {p.untyped_storage()._cdata for p in model.parameters()}
    inputs = torch.zeros(16, 32, device=device)
    owned.add(inputs.untyped_storage()._cdata)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), AllocationTracker() as counted:
        out = model(inputs)
    out_bytes = out.numel() * 4  # the last output is not saved
    assert counted.now == out_bytes + sum(size for handle, size in saved.items() if handle not in owned)
    with counted:
        out.sum().backward()
    gradients = sum(p.numel() * 4 for p in model.parameters())
    assert counted.now == out_bytes + gradients


def test_peak_equals_that_of_the_allocator():
    """The profiler hears every allocation of the CPU's allocator, in order."""
    model = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    inputs = torch.randn(2, 40, 32)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(inputs).square().mean().backward()

    step()
    model.zero_grad(set_to_none=True)
    with AllocationTracker() as counted:
        step()
    model.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    now = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    assert counted.peak == pytest.approx(peak, rel=0.05)  # kernels have buffers that no operation returns


def test_meta_attention_allocates_no_score_matrix():
    query = torch.zeros(1, 2, 512, 16, device="meta", requires_grad=True)
    mask = torch.ones(1, 1, 1, 512, device="meta", dtype=torch.bool)
    for mask_or_none in (None, mask):
        with AllocationTracker() as plain:
            out = torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask_or_none)
        assert plain.peak > 512 * 512 * 4
        del out
        with fused_attention(), AllocationTracker() as fused:
            out = torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask_or_none)
        assert out.shape == query.shape
        assert fused.peak < 4 * query.numel() * 4
        out.sum().backward()
        query.grad = None


def test_grouped_queries_and_cpu_tensors_are_unchanged():
    query, key = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    with fused_attention():
        assert torch.equal(torch.nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True), expected)
        small = [each.to("meta") for each in (query, key, key)]
        assert torch.nn.functional.scaled_dot_product_attention(*small, enable_gqa=True).shape == expected.shape


def test_meta_masks_are_full():
    values, mask = torch.zeros(7, 3, device="meta"), torch.ones(7, device="meta", dtype=torch.bool)
    with pytest.raises(RuntimeError):
        _ = values[mask]
    with FullMaskMode():
        assert values[mask].shape == (7, 3)
        assert values[~mask].shape == (0, 3)
        assert not mask.all()
