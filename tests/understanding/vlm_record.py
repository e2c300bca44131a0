"""Write what the checks of `vlm_matrix` saw into the file that `mmrl doctor --vlms` reads.

python -m tests.understanding.vlm_record [NAMES]   # run the checks of these families, or of all
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from mmrl.understanding.vlm_support import FACTS, ProvenVLM
from tests.understanding import tiny_vlms as tiny
from tests.understanding.vlm_matrix import CHECKS, BuiltVLM, adapted_parts, build, parts_of


def facts_of(built: BuiltVLM) -> ProvenVLM:
    """Return what was seen of a family in process, which `mmrl doctor --vlms` prints."""
    takes, vlm, parts = tiny.TAKES[built.name], built.policy.vlm, adapted_parts(built.model)
    attention = built.policy.attention
    return ProvenVLM(
        images="several" if takes.several else "one",
        videos=takes.video,
        mixes=takes.video and takes.mixes,
        causal=vlm.family.causal,
        unshared="" if attention.shares_prompts else attention.reason,
        adapters=tuple(sorted(parts)),
        frozen=tuple(sorted(parts_of(built.model) - parts)),
        space=vlm.family.space,
        trained_space=vlm.family.trained_space,
    )


def record(names: Sequence[str]) -> None:
    """Run all checks of families and write those that pass into the file of what is proven."""
    rows = yaml.safe_load(FACTS.read_text(encoding="utf-8")) or {}
    for name in names:
        with TemporaryDirectory() as folder:
            built = build(name, Path(folder))
            for check in CHECKS:
                check(built)
            seen = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(facts_of(built)).items()}
            # `tests.understanding.serving.served_parity` writes this one
            rows[name] = seen | {"served": rows.get(name, {}).get("served", seen["served"])}
    kept = {name: rows[name] for name in sorted(rows) if name in tiny.TAKES}
    FACTS.write_text(yaml.safe_dump(kept, sort_keys=False, width=1000), encoding="utf-8")


if __name__ == "__main__":
    record(sys.argv[1:] or list(tiny.TAKES))
