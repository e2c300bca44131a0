"""Measure what a suite saves: batched, concurrent and cached scoring, against calling each reward on each answer.

    python benchmarks/rewards.py            # fails below 3 times the answers per second
    python benchmarks/rewards.py --smoke    # seconds: does it still run, and do both score the same?

Four model rewards (on the tiny CLIP that ships), four rules, and a judge on loopback that thinks for 50 ms. Baseline:
`reward.score([answer])` for every reward and answer in turn, as a training script does. Both must give the same
scores before anything is timed. Then they take turns, in alternating order, and the median of their ratios counts. The
same is printed without the judge, whose latency is most of what there is to save, and with every score in the cache.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from mmrl.rewards import Reward, RewardInput, RewardSuite, ScoreCache, load
from mmrl_shapeworld import splits
from mmrl_shapeworld.captions import sample_scene
from mmrl_shapeworld.judge_server import serving
from mmrl_shapeworld.scenes import draw
from mmrl_shapeworld.shipped_models import CLIP

BOUND = 3.0
LATENCY_S = 0.05
ANSWERS, TURNS = 96, 5
Scores = dict[str, np.ndarray]


def answers(count: int) -> list[RewardInput]:
    """Pictures of captions, every other one of another caption."""
    rng = np.random.default_rng(0)
    captions = splits.captions("development")[:count]
    pictures = [draw(sample_scene(captions[row - row % 2], rng)) for row in range(count)]
    return [
        RewardInput(
            str(row),
            row // 8,
            str(caption),
            image=picture,
            references={"answer": caption.as_dict(), "image": pictures[0]},
        )
        for row, (caption, picture) in enumerate(zip(captions, pictures, strict=True))
    ]


def models_and_rules() -> list[Reward]:
    """Four of each."""
    clip = {"model": str(CLIP)}
    return [
        load("clip_score", prefix="", **clip),
        load("pickscore", **clip),
        load("goal_baseline", baseline="a small red circle", **clip),
        load("goal_contrast", negative="two blue squares", **clip),
        load("shapeworld"),
        load("compressibility"),
        load("artefacts"),
        load("ssim"),
    ]


def one_by_one(rewards: Sequence[Reward], batch: Sequence[RewardInput]) -> Scores:
    """The baseline."""
    return {
        reward.name: np.array([reward.score([item]).values[reward.name][0] for item in batch]) for reward in rewards
    }


def together(suite: RewardSuite, batch: Sequence[RewardInput]) -> Scores:
    """The suite."""
    output = suite.score(batch)
    return {name: output.values[name] for name in suite.names}


def compare(
    title: str, baseline: Callable[[], Scores], candidate: Callable[[], Scores], size: int, turns: int
) -> float:
    """Print both rates and the median ratio of interleaved turns, and return the ratio."""
    for name, values in baseline().items():
        np.testing.assert_allclose(values, candidate()[name], atol=2e-5, err_msg=name)
    times: dict[str, list[float]] = {"baseline": [], "suite": []}
    for turn in range(turns):
        sides = [("baseline", baseline), ("suite", candidate)]
        for side, run in sides if turn % 2 == 0 else reversed(sides):
            started = time.perf_counter()
            run()
            times[side].append(time.perf_counter() - started)
    ratio = median(slow / fast for slow, fast in zip(times["baseline"], times["suite"], strict=True))
    rates = {side: size / median(seconds) for side, seconds in times.items()}
    print(
        f"{title:<46}{rates['baseline']:>9.1f} answers/s one by one{rates['suite']:>10.1f} in a suite"
        f"{ratio:>9.2f} times ({turns} turns)"
    )
    return ratio


def main() -> None:
    """Measure, and fail below the bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="few answers, one turn, no bound")
    smoke = parser.parse_args().smoke
    size, turns = (8, 1) if smoke else (ANSWERS, TURNS)
    batch, rewards = answers(size), models_and_rules()
    with serving(delay_s=LATENCY_S) as url, tempfile.TemporaryDirectory() as folder:
        everything = [*rewards, load("judge", model="shapeworld", base_url=url)]
        suites = {
            name: RewardSuite([(r, 1.0) for r in parts]) for name, parts in (("all", everything), ("own", rewards))
        }
        cached = RewardSuite([(r, 1.0) for r in everything], cache=ScoreCache(Path(folder) / "scores.sqlite"))

        def by_hand() -> Scores:
            return one_by_one(everything, batch)

        def by_hand_without_judge() -> Scores:
            return one_by_one(rewards, batch)

        found = compare(
            "4 models, 4 rules, a judge of 50 ms", by_hand, lambda: together(suites["all"], batch), size, turns
        )
        compare("4 models, 4 rules", by_hand_without_judge, lambda: together(suites["own"], batch), size, turns)
        compare("4 models, 4 rules, the judge, all in cache", by_hand, lambda: together(cached, batch), size, turns)
    if not smoke and found < BOUND:
        raise SystemExit(f"the suite is {found:.2f} times as fast as one by one; expected at least {BOUND}")


if __name__ == "__main__":
    main()
