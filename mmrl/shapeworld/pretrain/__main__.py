"""Make the shipped weights again: `python -m mmrl.shapeworld.pretrain all --minutes 60 --out DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from mmrl.shapeworld.pretrain import autoencoder, generator, observer


def main() -> None:
    """Train one part, or all of them in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["autoencoder", "generator", "observer", "all"])
    parser.add_argument("--minutes", type=float, default=60.0, help="for all parts; each gets its share")
    parser.add_argument("--out", type=Path, required=True, help="folder that receives vae/, pipeline/ and observer")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    vae, minutes = args.out / "vae", args.minutes
    if args.part in ("autoencoder", "all"):
        print("strict reconstructions:", autoencoder.train(vae, minutes * 0.2))
    if args.part in ("observer", "all"):
        print("observer exact:", observer.train(args.out / "observer.safetensors", vae, minutes * 0.05))
    if args.part in ("generator", "all"):
        generator.train(args.out / "pipeline", vae, minutes * 0.75)


if __name__ == "__main__":
    main()
