"""The card of a trained reward model: what it was trained on, how often it is right, and how well it knows that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mmrl.config.reward_model import RewardModelConfig
from mmrl.rewards.learned.judge_inputs import JudgeInputs

REWARDS = {"clip": "learned", "text": "learned_text", "latents": "learned_latents"}
"""The reward that loads a folder, by the name of its encoder."""


@dataclass(frozen=True)
class RewardQuality:
    """Measures on samples that were not trained on; of each axis."""

    accuracy: Mapping[str, float] = field(default_factory=dict)
    """Share of pairs whose better answer has the higher score."""
    calibration: Mapping[str, float] = field(default_factory=dict)
    """Expected calibration error of the probability of the answer that is taken to be better, over ten bins."""
    by_gap: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Accuracy of the third of pairs that the model is least sure of, of the middle third and of the last."""
    rank_correlation: Sequence[float] = ()
    """Spearman's correlation of scores and truth, of each axis."""
    notes: Mapping[str, float] = field(default_factory=dict)
    """Shares of training pairs whose labels were changed, and accuracies at noise levels."""


def card_text(config: RewardModelConfig, count: int, quality: RewardQuality) -> str:
    """Return the card in Markdown."""
    inputs = JudgeInputs.of(config.encoder)
    reward = REWARDS[config.encoder.name] if inputs.plain else "learned_wins"
    arguments = "model: THIS_FOLDER" if inputs.plain else "model: THIS_FOLDER, reference: start"
    lines = [
        f"# {config.name}",
        "",
        f"A reward model: {config.ensemble} head(s) of kind `{config.head.kind}` on `{config.encoder.model}`, trained "
        f"with `mmrl train reward` on {count} samples of `{config.data.path}`, measured on `{config.data.validation}`.",
        "",
        "```yaml",
        f"rewards: [{{name: {reward}, args: {{{arguments}}}}}]",
        "```",
        "",
    ]
    if quality.accuracy:
        lines += ["| axis | accuracy | least sure third | middle | most sure | calibration error |", "|-|-|-|-|-|-|"]
        for axis, accuracy in quality.accuracy.items():
            by_gap = [f"{each:.3f}" for each in quality.by_gap[axis]]
            thirds = " | ".join(by_gap if len(by_gap) == 3 else ["too few pairs"] * 3)
            lines.append(f"| {axis} | {accuracy:.3f} | {thirds} | {quality.calibration[axis]:.3f} |")
        lines.append("")
    for axis, correlation in zip(config.axes, quality.rank_correlation, strict=False):
        lines += [f"Rank correlation with the true scores on {axis}: {correlation:.3f}", ""]
    if quality.notes:
        lines.append("; ".join(f"{name}: {share:.1%}" for name, share in quality.notes.items()) + ".")
    return "\n".join(lines).rstrip("\n") + "\n"
