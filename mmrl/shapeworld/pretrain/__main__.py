"""Make the shipped weights again: `python -m mmrl.shapeworld.pretrain all --minutes 100 --out DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from mmrl.shapeworld.pretrain import autoencoder, clip, generator, observer


def main() -> None:
    """Train one part, or all of them in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["autoencoder", "observer", "clip", "generator", "all"])
    parser.add_argument("--minutes", type=float, default=100.0, help="for all parts; each gets its share")
    parser.add_argument("--out", type=Path, required=True, help="folder that receives all that was trained")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    vae, minutes = args.out / "vae", args.minutes
    if args.part in ("autoencoder", "all"):
        print("strict reconstructions:", autoencoder.train(vae, minutes * 0.15))
    if args.part in ("observer", "all"):
        print("observer exact:", observer.train(args.out / "observer.safetensors", vae, minutes * 0.05))
    if args.part in ("clip", "all"):
        clip.train(args.out / "clip-shapes", args.out / "open-clip-shapes", vae, minutes * 0.25)
    if args.part in ("generator", "all"):
        generator.train(args.out / "pipeline", vae, minutes * 0.55)


if __name__ == "__main__":
    main()
