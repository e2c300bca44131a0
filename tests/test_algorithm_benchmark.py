"""The comparison of algorithms: every arm is a configuration that works, and the page says what the numbers say."""

from __future__ import annotations

import json
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from mmrl.build.training_setup import check
from mmrl.config.loading.load import load_config


@pytest.fixture(scope="module")
def bench(request):
    folder = request.config.rootpath / "benchmarks"
    sys.path.insert(0, str(folder))
    import algorithm_arms
    import algorithm_results

    yield algorithm_arms, algorithm_results
    sys.path.remove(str(folder))


def test_every_arm_and_pair_is_valid(bench):
    arms, _ = bench
    for name, arm in arms.ARMS.items():
        config = load_config(arm.recipe, arm.overrides)
        check(config)
        assert config.data.validation, name
    for pair in arms.PAIRS:
        assert {pair.arm, pair.other} <= set(arms.ARMS)


def run(seed: int, right: str, base: str = "1100", **changes):
    before, after = (sum(map(int, each)) / len(each) for each in (base, right))
    moved = {"mean": after - before, "low": 0.01, "high": 0.5}
    return {
        "key": "k", "budget_s": 240.0, "seed": seed, "iterations": 10, "prompts": 4,
        "curve": [[0, 0.0, before, 0.5], [10, 239.0, after, 0.6]],
        "curve_columns": ["iteration", "cpu_s", "shapeworld_strict", "shapeworld"],
        "difference": {"shapeworld_strict": moved, "shapeworld": moved},
        "training_cpu_s": 240.0, "evaluation_and_loading_cpu_s": 60.0, "diversity": [0.5, 0.4],
        "base": "same", "strict": right, "strict_base": base,
    } | changes  # fmt: skip


def test_page_pairs_prompts_and_averages_seeds(bench, tmp_path):
    _, results = bench
    written = {
        "nft_pareto/240s/seed-0": run(0, "1111"),
        "nft_sum/240s/seed-0": run(0, "1110"),
        "flow_grpo/240s/seed-0": run(0, "1110"),
        "flow_grpo/240s/seed-1": run(1, "1111"),
        "mixgrpo/240s/seed-0": run(0, "1110") | {"base": "another"},
        "cps/240s/seed-0": {"failed": True, "key": "k", "budget_s": 240.0, "seed": 0},
    }
    data = {"clock_s": 0.1, "pilots": {"flow_grpo": {"key": "k", "cost_s": 24.0, "clock_s": 0.1}}, "runs": written}
    (tmp_path / "algorithms.json").write_text(json.dumps(data))
    store = results.Results(tmp_path)
    results.write_page(store)
    page = (tmp_path / "algorithms.md").read_text()
    gain = results.over_seeds(store.runs("flow_grpo"))
    assert gain.mean == pytest.approx(0.375) and gain.n == 4, "each prompt's mean over the seeds: 0, 0, 1, 1/2"
    half = 3.182446 * np.std([0, 0, 1, 0.5], ddof=1) / 2
    assert gain.low == pytest.approx(0.375 - half, rel=1e-6)
    assert "| Flow-GRPO (`flow_grpo`) | 2 | 0.500 | 0.875 | **+0.375**" in page and "| 2 of 2 |" in page
    assert re.search(r"`nft_pareto` \| `nft_sum` \| 1 \| \*\*\+0\.250\*\*", page)
    assert "| `mixgrpo` | `flow_grpo` | 1" not in page, "another base is not compared"
    assert "Did not reach their end: cps/240s/seed-0." in page and "x 0.80" in page
    drawn = ElementTree.fromstring((tmp_path / "algorithms.svg").read_text())
    assert drawn.tag.endswith("svg") and len(list(drawn.iter("{http://www.w3.org/2000/svg}polyline"))) == 4


def test_results_of_changed_arms_are_not_reused(bench, tmp_path):
    arms, results = bench
    store = results.Results(tmp_path)
    store.keep("flow_grpo", "old", 240.0, 0, run(0, "1111"))
    again = results.Results(tmp_path)
    assert again.run("flow_grpo", "old", 240.0, 0)["strict"] == "1111"
    assert again.run("flow_grpo", "new", 240.0, 0) is None and again.run("flow_grpo", "old", 120.0, 0) is None
    arm = arms.ARMS["mixgrpo"]
    assert results.digest(arm, arm.overrides) != results.digest(arm, [*arm.overrides, "optimizer.lr=2e-4"])
