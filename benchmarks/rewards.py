"""Measure what a suite saves, against calling each reward on each answer, and what rewards take of an overlapped step.

    python benchmarks/rewards.py            # fails below 3 times the answers per second, and above 5 % of a step
    python benchmarks/rewards.py --smoke    # seconds: does it still run, and do both score the same?

Four model rewards (on the tiny CLIP that ships), four rules, and a judge on loopback that thinks for 50 ms. Baseline:
`reward.score([answer])` for every reward and answer in turn, as a training script does. Both must give the same
scores before anything is timed. Then they take turns, in alternating order, and the median of their ratios counts. The
same is printed without the judge, whose latency is most of what there is to save, and with every score in the cache.

Then the quickstart runs with `run.overlap: {lag: 1}` and three of the models, two rules and the judge. The share counts
of the time of an iteration in which the trainer waits for rollouts or their scores. Beside it stands an iteration whose
only reward is a rule: on a CPU the models compute on the cores that the update needs, whoever waits.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from mmrl.config import load_config
from mmrl.rewards import Reward, RewardInput, RewardSuite, ScoreCache, load
from mmrl.training.run.trackers import read_metrics
from mmrl.workflows.train import train
from mmrl_shapeworld import splits
from mmrl_shapeworld.captions import sample_scene
from mmrl_shapeworld.judge_server import serving
from mmrl_shapeworld.scenes import draw
from mmrl_shapeworld.shipped_models import CLIP

BOUND = 3.0
LATENCY_S = 0.05
ANSWERS, TURNS = 96, 5
MOST_WAITING, ITERATIONS, FILLING = 0.05, 12, 3
QUICK = (
    "data.validation=null",
    "data.heldout=null",
    "evaluation={}",
    "run.display=quiet",
    "run.pictures=0",
    "run.overlap={lag: 1}",
)
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


def overlapped_step(rewards: Sequence[dict[str, object]], iterations: int) -> tuple[float, float]:
    """Return the median seconds of an overlapped iteration of the quickstart, and the trainer's wait in it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"rewards={json.dumps(rewards)}", f"training.iterations={iterations}", f"run.dir={folder}/run"]
        train(load_config("quickstart", [*QUICK, *settings]))
        rows = [row for row in read_metrics(Path(folder) / "run") if "seconds/wait" in row][FILLING:]
    waits = [row["seconds/wait"] + row.get("seconds/reward", 0.0) for row in rows]
    return median(row["seconds/update"] + wait for row, wait in zip(rows, waits, strict=True)), median(waits)


def waiting_share(url: str, iterations: int) -> float:
    """Print what six rewards take of an overlapped iteration, and return the share in which the trainer waits."""
    clip = {"model": str(CLIP)}
    six = [
        {"name": "clip_score", "args": {**clip, "prefix": ""}},
        {"name": "pickscore", "args": clip},
        {"name": "goal_contrast", "args": {**clip, "negative": "two blue squares"}},
        {"name": "shapeworld"},
        {"name": "compressibility"},
        {"name": "judge", "args": {"model": "shapeworld", "base_url": url}},
    ]
    alone, _ = overlapped_step(six[3:4], iterations)
    seconds, wait = overlapped_step(six, iterations)
    print(
        f"3 models, 2 rules, the judge, overlapped: an iteration takes {seconds:.2f} s, of which the trainer waits "
        f"{wait:.3f} s, {wait / seconds:.1%}; with one rule {alone:.2f} s"
    )
    return wait / seconds


def main() -> None:
    """Measure, and fail beyond the bounds."""
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
        waiting = waiting_share(url, FILLING + 2 if smoke else ITERATIONS)
    if not smoke and found < BOUND:
        raise SystemExit(f"the suite is {found:.2f} times as fast as one by one; expected at least {BOUND}")
    if not smoke and waiting > MOST_WAITING:
        raise SystemExit(
            f"the trainer waits {100 * waiting:.1f} % of a step; expected at most {100 * MOST_WAITING:g} %"
        )


if __name__ == "__main__":
    main()
