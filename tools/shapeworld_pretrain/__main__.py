"""Make the shipped weights again: `python -m tools.shapeworld_pretrain all --minutes 130 --out DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tools.shapeworld_pretrain import (
    autoencoder,
    clip,
    generator,
    image_ar,
    observer,
    reasoner,
    scales,
    second_turns,
    shop_turns,
    taught_sums,
    tool_turns,
    unified,
    unified_look,
    vlm,
)

SHARES = {"autoencoder": 0.12, "observer": 0.04, "clip": 0.19, "generator": 0.42, "vlm": 0.23}
"""The share of each part in the time for all."""


def main() -> None:
    """Train one part, or all of them in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    further = (
        *("second-turns", "taught-sums", "conventions", "countdown", "calls", "shop"),
        *("unified", "unified-looking", "scales"),
    )
    parser.add_argument("part", choices=[*SHARES, "painter", *reasoner.SCHEDULES, *further, "all"])
    parser.add_argument("--minutes", type=float, default=130.0, help="for the part; of `all`, each gets its share")
    parser.add_argument("--out", type=Path, required=True, help="folder that receives all that was trained")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    vae = args.out / "vae"
    minutes = {part: args.minutes * (share if args.part == "all" else 1.0) for part, share in SHARES.items()}
    if args.part in ("autoencoder", "all"):
        print("strict reconstructions:", autoencoder.train(vae, minutes["autoencoder"]))
    if args.part in ("observer", "all"):
        print("observer exact:", observer.train(args.out / "observer.safetensors", vae, minutes["observer"]))
    if args.part in ("clip", "all"):
        clip.train(args.out / "clip-shapes", args.out / "open-clip-shapes", vae, minutes["clip"])
    if args.part in ("generator", "all"):
        generator.train(args.out / "pipeline", vae, minutes["generator"])
    if args.part in ("vlm", "all"):
        vlm.train(args.out / "vlm-shapes", minutes["vlm"])
    if args.part in ("painter", "all"):  # counted in steps, not in minutes: it takes a few minutes
        image_ar.train(args.out / "ar-shapes-32")
        print("painter strict, partial credit:", image_ar.skill(args.out / "ar-shapes-32"))
    for family in reasoner.SCHEDULES:  # counted in steps too
        if args.part in (family, "all"):
            reasoner.train(family, args.out / f"vlm-{family}")
    if args.part in ("unified", "all"):  # `minutes` is not for it
        unified.train(args.out / "unified-shapes-32")
    if args.part in ("unified-looking", "all"):  # from the shipped `unified-shapes-32`
        unified_look.train(args.out / "unified-looking-32")
    if args.part in ("scales", "all"):
        scales.train(args.out / "scales-shapes-32")
        print("scales strict, partial credit:", scales.skill(args.out / "scales-shapes-32"))
    if args.part in ("second-turns", "all"):
        second_turns.train(args.out / "vlm-sums-twice")
    if args.part in ("taught-sums", "all"):
        taught_sums.train(args.out / "vlm-sums-taught")
    if args.part in ("conventions", "all"):
        taught_sums.train(args.out / "vlm-sums-conventions", "conventions")
    if args.part in ("countdown", "all"):
        taught_sums.train(args.out / "vlm-countdown", "countdown")
    if args.part in ("calls", "all"):
        tool_turns.train(args.out / "vlm-calls")
    if args.part in ("shop", "all"):
        shop_turns.train(args.out / "vlm-shop")


if __name__ == "__main__":
    main()
