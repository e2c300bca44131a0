"""The device of tests that are marked `gpu`: CUDA where there is one, as for models whose device is `auto`."""

from __future__ import annotations

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
