"""Measure what preparing media once saves: clips per second from a cache, against decoding them each time.

    python benchmarks/media_cache.py            # fails below 1.4 times the clips per second
    python benchmarks/media_cache.py --smoke    # seconds: does it still run, and are the frames the same?

Short H.264 clips are written on the spot. Baseline: `MediaReader`, which decodes, samples and resizes (decord where it
is installed, else PyAV). Candidate: the same with the cache of `mmrl data prepare`. Both must give the same frames to
the bit before anything is timed. Then they take turns, in alternating order, and the median of their ratios of CPU
time counts: for reading alone, and for reading and what follows it in training, Qwen2-VL's video processor.
EasyVideoR1 (arXiv:2604.16893) reports 1.47 times the throughput of a whole training run from such a cache.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import av
import numpy as np
from transformers import Qwen2VLVideoProcessor

from mmrl.data import Sample
from mmrl.data.media.budget import MediaBudget, VideoBudget
from mmrl.data.media.reader import MediaCache, MediaReader, write_cache
from mmrl.data.media.video import VideoFrames, default_decoder

BOUND = 1.4
CLIPS, SECONDS, RATE, SIZE, TURNS = 6, 10, 30, (640, 360), 7
BUDGET = MediaBudget(video=VideoBudget(fps=2.0, max_frames=16, max_pixels=200_704))


def write_clip(path: Path, seconds: float, seed: int) -> str:
    """A camera that drifts over a coarse random pattern: neither still nor noise."""
    width, height = SIZE
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (height // 20 + 40, width // 20 + 40, 3), dtype=np.uint8)
    scene = coarse.repeat(20, axis=0).repeat(20, axis=1)
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(int(seconds * RATE)):
            x, y = 2 * number % 600, number % 500
            view = np.ascontiguousarray(scene[y : y + height, x : x + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(view, format="rgb24")))
        container.mux(stream.encode(None))
    return str(path)


def compare(title: str, baseline: Callable[[], None], candidate: Callable[[], None], clips: int, turns: int) -> float:
    """Print both rates and the median ratio of interleaved turns in CPU time, and return the ratio."""
    times: dict[str, list[float]] = {"baseline": [], "cache": []}
    for turn in range(turns):
        sides = [("baseline", baseline), ("cache", candidate)]
        for side, run in sides if turn % 2 == 0 else reversed(sides):
            started = time.process_time()
            run()
            times[side].append(time.process_time() - started)
    ratios = [slow / fast for slow, fast in zip(times["baseline"], times["cache"], strict=True)]
    rates = {side: clips / median(seconds) for side, seconds in times.items()}
    low, _, high = quantiles(ratios, n=4) if turns > 1 else (ratios[0],) * 3
    print(
        f"{title:<24}{rates['baseline']:>8.1f} clips/s decoded{rates['cache']:>9.1f} from the cache"
        f"{median(ratios):>8.2f} times ({low:.2f} to {high:.2f}, {turns} turns, CPU time)"
    )
    return median(ratios)


def main() -> None:
    """Measure, and fail below the bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="two clips of a second, one turn, no bound")
    smoke = parser.parse_args().smoke
    count, seconds, turns = (2, 1.0, 1) if smoke else (CLIPS, SECONDS, TURNS)
    with tempfile.TemporaryDirectory() as folder:
        clips = [write_clip(Path(folder) / f"{seed}.mp4", seconds, seed) for seed in range(count)]
        samples = [Sample(id=clip, prompt="what happens?", videos=(clip,)) for clip in clips]
        started = time.process_time()
        done = write_cache(samples, Path(folder) / "cache", BUDGET)
        prepared = time.process_time() - started
        direct = MediaReader(BUDGET)
        cached = MediaCache(Path(folder) / "cache", BUDGET)
        for clip in clips:
            np.testing.assert_array_equal(direct.video(clip).frames, cached.video(clip).frames)
        shape = list(direct.video(clips[0]).frames.shape)
        files = sum(Path(clip).stat().st_size for clip in clips)
        print(
            f"{count} clips of {seconds:g} s, {SIZE[0]} x {SIZE[1]} at {RATE} frames/s, {files / 1e6:.1f} MB; "
            f"frames {shape}, cache {done.bytes / 1e6:.1f} MB, prepared in {prepared:.1f} CPU s; {default_decoder()}"
        )
        processor = Qwen2VLVideoProcessor()

        def read(reader: MediaReader, then: Callable[[VideoFrames], None]) -> None:
            for clip in clips:
                then(reader.video(clip))

        def process(clip: VideoFrames) -> None:
            processor(videos=[clip.frames], do_sample_frames=False, return_tensors="pt")

        def nothing(clip: VideoFrames) -> None:
            pass

        compare("reading", partial(read, direct, nothing), partial(read, cached, nothing), count, turns)
        sides = (partial(read, direct, process), partial(read, cached, process))
        found = compare("reading and processor", *sides, count, turns)
    if not smoke and found < BOUND:
        raise SystemExit(f"the cache gives {found:.2f} times the clips a second; expected at least {BOUND}")


if __name__ == "__main__":
    main()
