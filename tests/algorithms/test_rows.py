import pytest
import torch

from mmrl.algorithms.forward_process import at_least_float32, row_mean, sigma_per_row
from mmrl.checks import ShapeError


@pytest.mark.parametrize(
    ("input_dtype", "expected"), [("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")]
)
def test_only_half_precision_is_widened(input_dtype, expected):
    assert at_least_float32(torch.ones(1, dtype=getattr(torch, input_dtype))).dtype is getattr(torch, expected)


def test_row_mean_by_hand():
    values = torch.tensor([[[1.0, 2.0], [3.0, 6.0]], [[0.0, 0.0], [0.0, 8.0]]])
    assert row_mean(values).tolist() == [3, 2]
    assert row_mean(values[:, 0, 0]).tolist() == [1, 0]  # latents of one number a row


def test_row_mean_keeps_precision():
    values = torch.full((1, 4096), 1.0078125).bfloat16()  # one unit of bfloat16 above 1
    values[0, 0] = 64
    assert row_mean(values).item() == pytest.approx(values.double().mean().item(), rel=1e-6)
    assert values.mean().item() != pytest.approx(values.double().mean().item(), rel=1e-4)  # what is avoided


def test_sigma_per_row_broadcasts_along_the_batch_even_if_square():
    like = torch.ones(3, 3, 3)
    got = sigma_per_row(torch.tensor([1.0, 2.0, 3.0]), like) * like
    assert got[:, 2, 1].tolist() == [1, 2, 3]
    assert torch.equal(sigma_per_row(0.5, like) * like, like / 2)
    with pytest.raises(ShapeError, match=r"sigma: expected \[B\] with B=3, got \[3, 1\]"):
        sigma_per_row(torch.ones(3, 1), like)
