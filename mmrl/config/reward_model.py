"""The recipe of a reward model: `mmrl train reward RECIPE`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from mmrl.config.section import Section, Seed

Share = Annotated[float, Field(ge=0, lt=1)]


class LatentNoiseConfig(Section):
    """The noise levels at which answers are learnt from."""

    low: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The lowest: that at which finished pictures and videos are scored."""
    high: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """The highest; equal to `low`: a head that knows no other level."""
    draws: PositiveInt = 4
    """The levels at which each training answer is seen, spread over the range."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low} and high {self.high}: expected low <= high")
        return self


class RewardEncoderConfig(Section):
    """The frozen network whose features a head scores."""

    name: Literal["clip", "text", "latents"] = "clip"
    """`clip`: image, prompt and their product in the space of a CLIP or SigLIP, of transformers or open_clip. `text`:
    answers are texts; the answer, the text that it is compared with, and their product, each the mean of the last
    hidden states of a text encoder or language model of transformers. `latents`: answers are pictures or videos, noised
    in the latent space of a pipeline of diffusers, whose denoiser's states are the features (arXiv:2501.13918)."""
    model: str
    """A folder, a Hugging Face id, or `shapeworld` for the one that ships (of texts: `shapeworld:sums`)."""
    prompt: str = "prompt"
    """`clip`: the key of `metadata` whose text pictures are compared with; unset: the prompt."""
    region: str | None = None
    """`clip`: the condition with a mask, such as `mask_image`, whose square surroundings a head sees too, cropped."""
    query: tuple[str, ...] = ()
    """`clip`: `task`, or keys of `metadata`, whose texts say by what to judge (OneReward, arXiv:2508.21066). A pair has
    one text for each, and is labelled by it; an answer whose text is a list is judged by each of its entries."""
    against: Literal["prompt", "answer"] = "prompt"
    """`text`: what an answer is compared with: the prompt, or the sample's `answer`, a reference (Cooper,
    arXiv:2508.05613)."""
    layers: tuple[str, ...] = ()
    """`latents`: the modules of the denoiser whose states count, such as `transformer_blocks.2` or `mid_block`."""
    noise: LatentNoiseConfig = LatentNoiseConfig()
    """`latents`: how much noise is added."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    """`latents`: keys of `sampling` that the pipeline's calls need, such as num_frames of a video."""
    prompt_components: NonNegativeInt = 0
    """`latents`: principal components of the prompt's mean state that a head sees too. Where the denoiser's states say
    little about the prompt, a score of how well latents suit it needs some; 0: none."""
    revision: str | None = None

    @model_validator(mode="after")
    def _layers(self) -> Self:
        if (self.name == "latents") != bool(self.layers):
            raise ValueError("layers names the modules of a generator whose states count: set it with name: latents, "
                             "and with no other")  # fmt: skip
        if self.name != "clip" and (self.prompt != "prompt" or self.region or self.query):
            raise ValueError(f"prompt, region and query are of name: clip, and name is {self.name}: leave them out")
        return self


class RewardDataConfig(Section):
    """The judged answers."""

    path: str
    """Samples with `chosen` and `rejected` pictures (or texts), such as votes of the demo; for `head.kind: pointwise`
    with one picture in `images` and the score in `answer`, a number or a map from axis to number. `encoder.name:
    latents` takes videos too: the path of one, or a list of pictures, its frames."""
    validation: str
    """Further samples, for the card."""


class RewardHeadConfig(Section):
    """The head on the features."""

    kind: Literal["bradley_terry", "gaussian", "pointwise"] = "bradley_terry"
    """`bradley_terry`: from pairs. `gaussian`: from pairs, each score with a variance. `pointwise`: from scores."""
    hidden: NonNegativeInt = 128
    """Units of the hidden layer; 0: the head is linear."""
    dropout: Share = 0.0


class LabelVoteConfig(Section):
    """A vote of several models on the labels of the training pairs (Secrets of RLHF II, arXiv:2401.06080)."""

    members: Annotated[int, Field(ge=2)] = 10
    """Models that vote."""
    steps: PositiveInt = 60
    """Updates of each: few, so that none remembers wrong labels."""
    flip: Share = 0.0
    """The largest share of pairs whose labels are flipped: those that the vote contradicts most."""
    soften: Share = 0.0
    """The share of the others, those of least strength, whose labels are softened."""
    drop: Share = 0.0
    """The share of the others, those of least strength, that are left out."""
    margin: NonNegativeFloat = 0.0
    """The gap that the loss asks of a clear pair, as a factor of its strength."""


class LabelConfig(Section):
    """The treatment of labels that may be wrong."""

    smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """The probability that any label is wrong."""
    vote: LabelVoteConfig | None = None
    """Unset: all labels count alike."""


class RaterConfig(Section):
    """A latent vector for each rater, inferred from a few pairs (VPL, arXiv:2408.10075)."""

    latent: PositiveInt = 4
    """Entries of the vector."""
    context: PositiveInt = 8
    """Pairs of a rater from which the vector is inferred. Raters need at least one pair more."""
    divergence: NonNegativeFloat = 0.01
    """The weight of the divergence of the vector's distribution from a standard normal one."""


class RankedFactorConfig(Section):
    """A factor of rewards that are ranked by importance (HERON, arXiv:2309.02632)."""

    name: str
    """The key in `metadata.factors` of samples, whose value is two numbers, of the chosen and the rejected answer."""
    margin: NonNegativeFloat = 0.0
    """The difference above which the factor decides, in its standard deviations over the training answers."""


class GoalConfig(Section):
    """A contrast of the states in which answers come about (goal-conditioned reward models, arXiv:2407.13887).

    Pairs have earlier states of both pictures, such as previews while they are denoised, in `metadata.states`:
    {"chosen": [path, ...], "rejected": [path, ...]}, in their order and as many for all.
    """

    weight: NonNegativeFloat = 0.5
    """The factor on the contrast, beside the loss of the pairs. 0: finished pictures alone."""


class ErrorBoundConfig(Section):
    """A bound of the error of each score, which the reward gives as `learned_bound` (PrefPaint, arXiv:2410.21966)."""

    ridge: PositiveFloat = 1.0
    """The multiple of the unit matrix that is added to the sum over rated answers."""


class RewardTrainingConfig(Section):
    """The optimizer (AdamW) and its steps."""

    steps: PositiveInt = 600
    batch: PositiveInt = 128
    """Pairs or answers of an update."""
    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.01


class RewardModelConfig(Section):
    """A reward model and its training."""

    name: str
    encoder: RewardEncoderConfig
    data: RewardDataConfig
    axes: Annotated[tuple[str, ...], Field(min_length=1)] = ("overall",)
    """The scores of one answer. A pair says in `metadata.axes` which answer is better on which axis, as {"motion":
    "chosen", "quality": "rejected"}; without it `chosen` is better on all of them."""
    head: RewardHeadConfig = RewardHeadConfig()
    labels: LabelConfig = LabelConfig()
    factors: tuple[RankedFactorConfig, ...] = ()
    """Factors, the most important first, that decide which answer of a pair is better; the first one by which they
    differ does. Pairs that differ in none are left out. Unset: `chosen` is better, or as `metadata.axes` says."""
    goals: GoalConfig | None = None
    """Set: earlier states of pictures are learnt from, so that the reward also scores what is half made."""
    bound: ErrorBoundConfig | None = None
    """Set: the folder also says in which directions of its features answers were judged."""
    raters: RaterConfig | None = None
    """Set: samples name a `rater`, and each rater has preferences that a latent vector stands for."""
    ensemble: PositiveInt = 1
    """Heads that differ in their start and the order of the data. Their spread says how sure the reward is."""
    training: RewardTrainingConfig = RewardTrainingConfig()
    seed: Seed = 0
    out: str | None = None
    """The folder of the reward model; unset: runs/rewards/NAME."""
