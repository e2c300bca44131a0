"""The arms of the comparison of algorithms: a table of data, one entry per algorithm."""

from __future__ import annotations

from dataclasses import dataclass

ONLINE, FORWARD, THROUGH, SEVERAL = (
    "Online, with log-probabilities",
    "Forward process and preferences",
    "Through the reward",
    "Several rewards",
)


@dataclass(frozen=True)
class Arm:
    """An algorithm: a recipe and its overrides."""

    title: str
    family: str
    recipe: str
    overrides: tuple[str, ...] = ()
    paper: str = ""
    seeds: int = 1  # of the full comparison


@dataclass(frozen=True)
class Pair:
    """A mechanism and its ablation, and what its paper says of the two."""

    arm: str
    other: str
    claim: str


CLIP_TOO = ("rewards=[{name: shapeworld}, {name: shapeworld_clip}]",)
TWO_UPDATES = ("training.updates=2", "data.micro_batch=96")

ARMS: dict[str, Arm] = {
    "flow_grpo": Arm("Flow-GRPO", ONLINE, "flow-grpo", paper="arXiv:2505.05470", seeds=3),
    "mixgrpo": Arm(
        "MixGRPO, a window of 2 that slides",
        ONLINE,
        "flow-grpo",
        ("sampling.window={size: 2, high: 4, move: slide, every: 10}",),
        "arXiv:2507.21802",
        3,
    ),
    "dance_grpo": Arm(
        "DanceGRPO",
        ONLINE,
        "flow-grpo",
        ("sampling.transition={name: dance_sde, noise_level: 0.7}", "algorithm.advantage.ddof=1"),
        "arXiv:2505.07818",
        3,
    ),
    "flow_grpo_fast": Arm(
        "Flow-GRPO-Fast, a random window of 2", ONLINE, "flow-grpo", ("sampling.window.size=2",), "arXiv:2505.05470"
    ),
    "flow_grpo_all_steps": Arm(
        "Flow-GRPO, the last stochastic step too", ONLINE, "flow-grpo", ("sampling.window.high=5",), "arXiv:2505.05470"
    ),
    "cps": Arm(
        "CPS sampling",
        ONLINE,
        "flow-grpo",
        ("sampling.transition={name: cps, noise_level: 0.7}", "algorithm.clip.low=1e-3"),
        "arXiv:2509.05952",
    ),
    "grpo_guard": Arm(
        "GRPO-Guard, two updates",
        ONLINE,
        "flow-grpo",
        ("algorithm={name: grpo_guard, clip: {low: 1.0e-3}}", *TWO_UPDATES),
        "arXiv:2510.22319",
    ),
    "two_updates": Arm("Flow-GRPO, two updates", ONLINE, "flow-grpo", TWO_UPDATES, "arXiv:2505.05470"),
    "unigrpo": Arm(
        "UniGRPO's velocity-MSE penalty",
        ONLINE,
        "flow-grpo",
        ("algorithm={name: unigrpo, clip: {low: 1.0e-2}, kl: {kind: velocity_mse, coef: 0.01}}",),
    ),
    "branch_grpo": Arm(
        "BranchGRPO",
        ONLINE,
        "flow-grpo",
        ("algorithm={name: branch_grpo, clip: {low: 1.0e-2}}", "sampling.branch={at: [0, 1, 2]}"),
        "arXiv:2509.06040",
    ),
    "same_beginnings": Arm(
        "Flow-GRPO, eight rows of a group from the same noise",
        ONLINE,
        "flow-grpo",
        ("sampling.branch={at: [0], branching_factor: 8}",),
    ),
    "b2_diffurl": Arm(
        "B2-DiffuRL",
        ONLINE,
        "flow-grpo",
        (
            "algorithm={name: b2_diffurl, clip: {low: 1.0e-2}, advantage: {name: running, clip: 5.0, "
            "extremes_threshold: 0.5, history: {buffer: 64, min_count: 8}}}",
            "sampling.window={size: 2, high: 4, move: grow, every: 30}",
            "sampling.branch={at: [0], branching_factor: 8}",
        ),
        "arXiv:2503.11240",
    ),
    "reinflow": Arm(
        "ReinFlow, learned noise",
        ONLINE,
        "flow-grpo",
        ("sampling.transition={name: noisy_ode, noise_level: 0.5, learned: {low: 0.2, high: 1.0, lr_scale: 50}}",),
        "arXiv:2505.22094",
    ),
    "fixed_noise": Arm(
        "The ODE and fixed noise", ONLINE, "flow-grpo", ("sampling.transition={name: noisy_ode, noise_level: 0.5}",)
    ),
    "ddpo": Arm("DDPO, on the tiny Stable Diffusion 1.5", ONLINE, "shapes-ddpo", paper="arXiv:2305.13301", seeds=3),
    "diffusion_nft": Arm("DiffusionNFT", FORWARD, "quickstart", paper="arXiv:2509.16117", seeds=3),
    "nft_no_negatives": Arm(
        "DiffusionNFT without negatives", FORWARD, "quickstart", ("algorithm.negatives=false",), "arXiv:2509.16117"
    ),
    "awm": Arm(
        "AWM",
        FORWARD,
        "quickstart",
        ("algorithm={name: awm, num_noise_levels: 3, old: {rate: 0.001, cap: 0.3}, old_kl: 1.0}",),
        "arXiv:2509.25050",
        3,
    ),
    "flow_dpo": Arm(
        "Flow-DPO, online",
        FORWARD,
        "quickstart",
        ("algorithm={name: online_dpo}", "optimizer.lr=5.0e-5"),
        "arXiv:2501.13918",
        3,
    ),
    "flow_rwr": Arm("Flow-RWR", FORWARD, "quickstart", ("algorithm={name: flow_rwr}",), "arXiv:2501.13918"),
    "rejection_sft": Arm(
        "Rejection-sampling SFT",
        FORWARD,
        "quickstart",
        (
            "algorithm={name: rejection_sft, advantage: {keep: 4}, num_noise_levels: 6}",
            "training.epochs=1",
            "optimizer={lr: 1.0e-5, ema: 0.98}",
        ),
        "arXiv:2304.06767",
        3,
    ),
    "draft": Arm(
        "DRaFT-1, on the CLIP",
        THROUGH,
        "quickstart",
        ("algorithm={name: draft}", "rewards=[{name: shapeworld_clip}]", "training.epochs=1", "optimizer.ema=0.95"),
        "arXiv:2309.17400",
        3,
    ),
    "nft_sum": Arm("DiffusionNFT on the sum of rules and CLIP", SEVERAL, "quickstart", CLIP_TOO),
    "nft_pareto": Arm(
        "DiffusionNFT, Pareto selection",
        SEVERAL,
        "quickstart",
        (*CLIP_TOO, "algorithm.advantage={name: pareto, clip: 5.0}"),
        "arXiv:2401.05675",
    ),
    "nft_gdpo": Arm(
        "DiffusionNFT, GDPO",
        SEVERAL,
        "quickstart",
        (*CLIP_TOO, "algorithm.advantage={name: gdpo, ddof: 1, clip: 5.0}"),
        "arXiv:2601.05242",
    ),
    "nft_clip": Arm("DiffusionNFT on the CLIP alone", SEVERAL, "quickstart", ("rewards=[{name: shapeworld_clip}]",)),
    "nft_constraint": Arm(
        "DiffusionNFT on the CLIP, rules held at 0.7",
        SEVERAL,
        "quickstart",
        ("rewards=[{name: shapeworld_clip}, {name: shapeworld, at_least: 0.7, lagrange: {rate: 0.5}}]",),
        "arXiv:2505.20107",
    ),
}

PAIRS: tuple[Pair, ...] = (
    Pair("flow_grpo_fast", "flow_grpo", "A random window learns more than all steps, at equal work (Flow-GRPO-Fast)."),
    Pair("mixgrpo", "flow_grpo", "A sliding window learns more than all steps (MixGRPO)."),
    Pair("flow_grpo", "flow_grpo_all_steps", "Leaving out the last stochastic step helps (this suite's own)."),
    Pair("grpo_guard", "two_updates", "Ratios normalised over steps beat plain ones (GRPO-Guard)."),
    Pair("branch_grpo", "flow_grpo", "Branching beats independent trajectories (BranchGRPO)."),
    Pair("branch_grpo", "same_beginnings", "Credit of each step beats credit of the whole path (BranchGRPO)."),
    Pair("reinflow", "fixed_noise", "Learned noise beats fixed noise (ReinFlow)."),
    Pair("diffusion_nft", "nft_no_negatives", "Negatives help (DiffusionNFT)."),
    Pair("nft_pareto", "nft_sum", "Learning from the Pareto front alone beats a fixed sum (Parrot)."),
    Pair("nft_gdpo", "nft_sum", "Normalising each reward before they are added beats their sum (GDPO)."),
    Pair("nft_constraint", "nft_clip", "A constraint keeps what the maximised reward would give up (MVC-ZigAL)."),
)

LOOKS = """\
## Preliminary runs on development captions

Seed 10, 384 captions of `shapeworld:development`, the base at 0.404; 150 CPU-seconds each, which is 20 to 45
iterations. Strict correctness during training; the settings above were chosen from these.

| arm | setting | strict |
|-|-|-|
| `flow-grpo` | unchanged | 0.430 at 16 |
| `flow-grpo` | lr 2e-4, average 0.95 | 0.388 at 16 |
| `awm` | lr 3e-4 | 0.029 at 10: norms of the gradient above 100 |
| `awm` | lr 1e-4, KL penalty 1 to a slowly updated old policy | 0.391 at 10, 0.432 at 20 |
| `flow_dpo` | best against worst, lr 5e-5 | 0.438 at 30, 0.461 at 40 |
| `flow_dpo` | all pairs, beta 10, lr 2e-5, average 0.95 | 0.430 at 10, 0.424 at 20 |
| `draft` | one step, average 0.95 | 0.443 at 12, 0.464 at 24, 0.445 at 36 (the CLIP: 1.672, 1.696, 1.737, 1.751) |
| `draft` | all steps, detached (DRTune), lr 2e-4 | 0.349 at 12, 0.242 at 24 |
| `rejection_sft` | best 4 of 12, lr 2e-5, 3 levels, 2 epochs | 0.299 at 10, 0.167 at 20, 0.081 at 30 |
| `rejection_sft` | best 4 of 12, lr 1e-5, 6 levels, average 0.98 | 0.370 at 10, 0.320 at 20, 0.266 at 30 |
| `rejection_sft` | all 12 of 12, without rejection, lr 2e-5, 3 levels | 0.271 at 10, 0.154 at 20 |
| `rejection_sft` | the same, sampled in 40 steps (base: 0.440) | 0.357 at 10 |
| `sft` | images rendered by ShapeWorld, lr 2e-5 | 0.396 at 10, 0.398 at 20, 0.385 at 30, 0.380 at 50 |

Imitation of its best images makes this pipeline worse at every learning rate tried. The last three rows show the
reason: any imitation of its samples makes it worse. The images of ten steps along the ODE differ slightly from those
that the velocity was trained for; each round makes them the new target, and the drift accumulates. Selection of the
best slows the drift, finer steps slow it more, and with rendered images there is almost none. Losses that subtract the
common part of a group (`diffusion_nft`, `flow_dpo`) also subtract the drift, and learn from the same rollouts.

The same happens to every arm in the table whose samples can only attract: `nft_no_negatives`, `nft_pareto` (rows of
the front are above average, none is below; the paper selects under a policy gradient, which does not imitate),
`flow_rwr`.
"""
