"""The served form of a tiny family beside the one in process: ids equal, log-probabilities to 1e-5 in float32.

python -m tests.understanding.serving.served_parity [NAMES]   # compare these families, or all, and write what was
                                                              # seen into the file that `mmrl doctor --vlms` reads
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import yaml

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.understanding.vlm_support import FACTS
from tests.understanding import tiny_vlms as tiny
from tests.understanding.media import as_gif, as_png, frames, picture
from tests.understanding.serving.stub_process import stub
from tests.understanding.serving.test_served_engine import move, policy_of, settings

SAMPLES = (
    Sample("seen", prompt="What?", images=(as_png(picture(1)),)),
    Sample("wide", prompt="And this one, or another?", images=(as_png(picture(2, 72, 40)),)),
    Sample("two", prompt="<image> or <image>?", images=(as_png(picture(3)), as_png(picture(4, 40, 56)))),
    Sample("said", prompt="Two and two?"),
    Sample("clip", prompt="What moves?", videos=(as_gif(frames(5, 4)),)),
    Sample("both", prompt="Alike?", images=(as_png(picture(4)),), videos=(as_gif(frames(7, 4)),)),
)
COOL = TokenSamplingConfig(max_new_tokens=8, temperature=0.9)
GREEDY = TokenSamplingConfig(max_new_tokens=8, temperature=0.0)
LARGEST_MEAN = 1e-5
"""The bound of the mean of |log p of the server - log p of the trainer|, over sampled tokens."""
PATIENT = {"connect": 20.0, "silence": 120.0, "request": 120.0, "update": 120.0}
"""Some of the models take seconds for a pass, and the stub answers nothing meanwhile."""


NO_VIDEOS = "without videos, which its processor marks by a word of several tokens"


def samples_of(name: str) -> list[Sample]:
    """Return the prompts above that a family takes."""
    takes = tiny.TAKES[name]
    return [
        sample
        for sample in SAMPLES
        if (sample.images or sample.videos or takes.text_alone)
        and (len(sample.images) < 2 or takes.several)
        and (takes.video or not sample.videos)
        and (takes.mixes or not (sample.images and sample.videos))
    ]


@torch.no_grad()
def check_served(name: str, folder: Path, served_folder: Path) -> tuple[float, str]:
    """Check that a moved policy's greedy answers are the same tokens by a server and in process, and that sampled
    tokens have the trainer's log-probabilities; return the mean difference of these, and what cannot be served."""
    samples, limit = samples_of(name), ""
    served, inside = (policy_of(folder, sampling=COOL) for _ in range(2))
    with stub(**{name: folder}) as server:
        served.serve(settings(server.url_of(name), probes=2, timeouts=PATIENT), served_folder)
        if any(sample.videos for sample in samples) and not takes_videos(served):
            samples, limit = [sample for sample in samples if not sample.videos], NO_VIDEOS
        for policy in (served, inside):
            move(policy)
        greedy = [RolloutRequest(sample, 1, group, sampling=GREEDY) for group, sample in enumerate(samples)]
        ours, theirs = served.rollout(greedy, seed=0), inside.rollout(greedy, seed=0)
        sampled = served.rollout([RolloutRequest(sample, 3, group) for group, sample in enumerate(samples)], seed=1)
    assert ours.token_ids == theirs.token_ids
    torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=4e-5, rtol=0)
    own = inside.score_recording(sampled.recording)
    gap = float((own - sampled.log_probs).abs()[sampled.mask].mean())
    assert gap <= LARGEST_MEAN
    assert [prompt.length for prompt in sampled.recording.prompts] == [
        prompt.length for prompt in ours.recording.prompts
    ]
    return gap, limit


def takes_videos(policy: VLMPolicy) -> bool:
    """Return False if a served policy refuses videos by name."""
    try:
        policy._encoder.encode(next(sample for sample in SAMPLES if sample.id == "clip"))
    except DataError as err:
        assert "marks by a word of several tokens" in str(err)
        return False
    return True


def record(names: Sequence[str]) -> None:
    """Compare families and write of each that its served form equals, or how it differs."""
    rows = yaml.safe_load(FACTS.read_text(encoding="utf-8"))
    for name in names:
        with TemporaryDirectory() as folder:
            try:
                gap, limit = check_served(name, tiny.build(name, Path(folder) / "model"), Path(folder) / "served")
            except (AssertionError, RuntimeError, ValueError) as err:
                rows[name]["served"] = f"differs: {' '.join(str(err).split())[:200]}"
                print(f"{name}: {rows[name]['served']}", flush=True)
                continue
        rows[name]["served"] = limit
        print(f"{name}: {gap:.1e} {limit}", flush=True)
    FACTS.write_text(yaml.safe_dump(rows, sort_keys=False, width=1000), encoding="utf-8")


if __name__ == "__main__":
    record(sys.argv[1:] or list(tiny.TAKES))
