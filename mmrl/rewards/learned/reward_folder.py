"""The folder of a trained reward model: settings as JSON, parameters as safetensors.

reward_model.json     encoder, sizes of the heads, names of the axes, mean and spread of the scores
heads.safetensors     the parameters of each member of the ensemble, and latent vectors of raters
README.md             the card: accuracy, calibration, training data
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mmrl.atomic_io import replace_text
from mmrl.config.reward_model import RewardModelConfig
from mmrl.nested_state import state_of_part
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.learned.judge_inputs import JudgeInputs
from mmrl.rewards.learned.score_head import HeadShape, ScoreHead

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS, HEADS, CARD = "reward_model.json", "heads.safetensors", "README.md"
FORMAT = 1


@dataclass(frozen=True)
class RewardModelSettings:
    """Everything that a folder states beside its parameters."""

    encoder: str
    """The folder or hub id of the encoder."""
    revision: str | None
    shape: HeadShape
    axes: tuple[str, ...]
    members: int
    mean: tuple[float, ...]
    """The mean of the scores of the training answers, for each axis; the reward subtracts it."""
    spread: tuple[float, ...]
    """Their standard deviation, by which the reward divides."""
    raters: tuple[str, ...] = ()
    """The raters whose latent vectors are known."""
    kind: Literal["clip", "text", "latents"] = "clip"
    """The kind of the encoder: of pictures and prompts, of texts, or a generator of latents."""
    against: Literal["prompt", "answer"] = "prompt"
    """The text with which an answer in text is compared: the sample's prompt, or its right answer."""
    layers: tuple[str, ...] = ()
    """The modules of a generator's denoiser whose states are features."""
    noise: tuple[float, float] = (0.0, 0.0)
    """The lowest and highest noise level of latents that heads were trained on."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `sampling` with which the generator is called."""
    prompt: str = "prompt"
    """The fact of a sample that pictures are compared with."""
    region: str | None = None
    """The condition with a mask whose surroundings are seen too."""
    query: tuple[str, ...] = ()
    """The facts of a sample that say by what to judge."""

    @property
    def judge_inputs(self) -> JudgeInputs:
        """The inputs of the heads beside a picture."""
        return JudgeInputs.of(self)


def write_reward_folder(
    folder: Path,
    settings: RewardModelSettings,
    heads: Sequence[ScoreHead],
    latents: Tensor | None,  # [E, R, L] of E members and R raters
    card: str,
    inverses: Tensor | None = None,  # [E, H, H], see `error_bound`
    others: Mapping[str, Tensor] | None = None,  # further tensors by name
) -> None:
    """Write the folder; its settings come last, so that a folder with settings is whole."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"members.{number}.{name}": value.detach().contiguous()
        for number, head in enumerate(heads)
        for name, value in head.state_dict().items()
    }
    if latents is not None:
        tensors["latents"] = latents.detach().contiguous()
    if inverses is not None:
        tensors["inverses"] = inverses.detach().contiguous()
    tensors |= {name: value.detach().contiguous() for name, value in (others or {}).items()}
    draft = folder / f".{HEADS}"
    save_file(tensors, draft)
    draft.replace(folder / HEADS)
    replace_text(folder / CARD, card)
    replace_text(folder / SETTINGS, json.dumps({"format": FORMAT, **asdict(settings)}, indent=1) + "\n")


def read_reward_folder(folder: Path) -> tuple[RewardModelSettings, list[ScoreHead], Mapping[str, Tensor]]:
    """Return settings, the members in evaluation mode, and the other tensors.

    These are `latents` of raters, `inverses`, and those of the `FeatureScale` of a generator's features.

    Raises:
        RewardError: the folder is not one of a reward model, or is damaged. The message names the file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        document = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        tensors = load_file(folder / HEADS)
    except (OSError, ValueError, SafetensorError) as err:
        raise RewardError(f"{folder} is no folder of `mmrl train reward`: {err}") from None
    try:
        settings = _settings(document)
        heads = [ScoreHead(settings.shape) for _ in range(settings.members)]
        for number, head in enumerate(heads):
            head.load_state_dict(state_of_part(tensors, f"members.{number}."))
            head.eval()
    except (KeyError, TypeError, RuntimeError) as err:
        raise RewardError(f"{folder / SETTINGS} and {HEADS} do not fit: {err}") from None
    return settings, heads, {name: value for name, value in tensors.items() if not name.startswith("members.")}


def _settings(document: Mapping[str, object]) -> RewardModelSettings:
    if document.get("format") != FORMAT:
        raise KeyError(f"format {document.get('format')!r}, and this version reads {FORMAT}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
    del values["format"]
    values["shape"] = HeadShape(**document["shape"])  # type: ignore[arg-type]
    return RewardModelSettings(**values)  # type: ignore[arg-type]


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
