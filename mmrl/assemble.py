"""The names that scripts and model cards of the last release import from here; each gives a FutureWarning."""

from __future__ import annotations

from mmrl.lazy import exports

__getattr__ = exports(
    __name__,
    {},
    renamed={
        "build_policy": "mmrl.build.policies:build_policy",
        "check": "mmrl.build.config_checks:check",
        "evaluate_run": "mmrl.workflows.train:evaluate_run",
        "load_samples": "mmrl.build.datasets:load_samples",
        "sample_images": "mmrl.workflows.generate_images:sample_images",
        "train": "mmrl.workflows.train:train",
    },
)
