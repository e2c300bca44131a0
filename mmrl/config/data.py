"""Prompts, their grouping into batches, the treatment of groups without a learning signal, and the form of answers.

The slots `prompts`, `group_sampling`, `replay`, `weighting`, `starts`, `demonstrations`, `turn_filter`, `token_budget`
and `controller` combine: docs/samplers.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, Tag, model_validator

from mmrl.config.controller import ControllerConfig
from mmrl.config.growing import GrowingPromptsConfig
from mmrl.config.section import Section, tag_of
from mmrl.config.starts import StartsConfig
from mmrl.config.written_prompts import WrittenPromptsConfig

Share = Annotated[float, Field(ge=0, le=1)]
Curve = Literal["easy", "medium", "hard", "parabola", "easy_only", "medium_only", "hard_only"]


class ShuffledPromptsConfig(Section):
    """Each sample once an epoch."""

    name: Literal["shuffled"] = "shuffled"


class VarianceAwarePromptsConfig(Section):
    """Prompts whose answers differ in reward come more often (MMR1, arXiv:2509.21268)."""

    name: Literal["variance_aware"] = "variance_aware"
    share: Share = 0.5
    """The share of a batch that is drawn by score; the rest is the next of a shuffled epoch."""
    outcome: NonNegativeFloat = 0.8
    """The weight of the variance of an answer's reward in the score."""
    diversity: NonNegativeFloat = 0.2
    """The weight of the difference between the texts of a group."""


class ValuedPromptsConfig(Section):
    """Groups of equal rewards make place for prompts of high value, which are hard and uncertain (VSPO,
    arXiv:2512.07478); with `group_sampling: {name: dynamic}`."""

    name: Literal["valued"] = "valued"
    difficulty: NonNegativeFloat = 0.2
    """The weight of what the mean reward of a prompt's answers lacks to 1 in its value."""
    uncertainty: NonNegativeFloat = 0.8
    """The weight of the variance of these rewards, over the largest that there is."""

    @model_validator(mode="after")
    def _some_prompt_has_a_value(self) -> ValuedPromptsConfig:
        if not self.difficulty + self.uncertainty:
            raise ValueError("no prompt has a value: set difficulty or uncertainty above 0")
        return self


class StagedPromptsConfig(Section):
    """The parts of the samples one after another, by `metadata["stage"]` (UItron, arXiv:2508.21767)."""

    name: Literal["staged"] = "staged"
    shares: tuple[PositiveFloat, ...] = ()
    """The shares of training by stage, in order; only their ratio counts. Empty: all alike."""


class HardestPromptsConfig(Section):
    """Every pass over the samples has the hardest share of those of the pass before (DRIVE, arXiv:2511.06307)."""

    name: Literal["hardest"] = "hardest"
    keep: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The share of prompts that the next pass has, by the mean total reward of their answers."""


class MixturePromptsConfig(Section):
    """The prompts of every iteration in stated shares of the samples' sources; a controller may move them."""

    name: Literal["mixture"] = "mixture"
    weights: Annotated[dict[str, NonNegativeFloat], Field(min_length=1)]
    """The weight of each `source` of the samples; only their ratio counts, and 0 leaves a source out."""


class AngleConcentrationPromptsConfig(Section):
    """Prompts around a place in the ranking by `metadata.angle`, which moves with the accuracy (GAIN-RL,
    arXiv:2506.02281)."""

    name: Literal["angle_concentration"] = "angle_concentration"
    width: PositiveFloat = 0.13
    """Standard deviation of the normal density over ranks, as a share of the data set; the paper's 1000 of 7,473."""
    step: NonNegativeFloat = 0.13
    """The largest move of its mean, as a share of the data set; 0 stays at the highest angles."""
    every: PositiveInt = 10
    """The iterations between two moves."""
    target: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The mean total reward above which the mean moves faster."""
    sensitivity: PositiveFloat = 2.0
    """The factor of the accuracy and of the angle in the move."""


class FixedGroupSamplingConfig(Section):
    """`groups` prompts, `group_size` answers each."""

    name: Literal["fixed"] = "fixed"


class DynamicGroupSamplingConfig(Section):
    """Groups of equal rewards are dropped, and other prompts drawn in their place (DAPO, arXiv:2503.14476)."""

    name: Literal["dynamic"] = "dynamic"
    max_rounds: PositiveInt = 8
    """The sampling rounds of one iteration; groups of equal rewards fill up what is still missing then."""


class SpreadGroupSamplingConfig(Section):
    """Groups whose rewards hardly differ are left out, for rewards that are no two values (RLPR, arXiv:2506.18254)."""

    name: Literal["spread"] = "spread"
    below: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A group is left out if the standard deviation of its rewards is below this share of the mean over all groups.
    RLPR compares with a moving average of that mean."""


class AdaptiveGroupSamplingConfig(Section):
    """Each prompt is drawn until it has enough good and bad answers, of which `group_size` stay (Reinforce-Ada,
    arXiv:2510.04996)."""

    name: Literal["adaptive"] = "adaptive"
    max_rounds: PositiveInt = 4
    """The sampling rounds of one prompt."""
    per_round: PositiveInt | None = None
    """Answers of a prompt in one round; unset: `group_size`."""
    success: float = 1.0
    """An answer is good if its total reward is at least this."""
    positives: Annotated[int, Field(ge=0)] | None = None
    """Good answers that are enough; unset: half of `group_size`."""
    negatives: Annotated[int, Field(ge=0)] | None = None
    """Bad answers that are enough; unset: half of `group_size`. 0: only good ones are waited for."""


class TimedGroupSamplingConfig(Section):
    """`group_size` workers play a prompt's episodes one after another for a given time; what has not ended then is left
    out, as asynchronous workers would (arXiv:2509.01684)."""

    name: Literal["timed"] = "timed"
    window: PositiveFloat
    """The seconds of an iteration, by the durations that the environment reports."""
    key: str = "seconds"
    """The duration of an episode in its outcome."""
    max_rounds: PositiveInt = 16
    """The most episodes of a worker."""


class SelectiveReplayConfig(Section):
    """Past answers with an advantage fill the places of groups of equal rewards (VL-Rethinker, arXiv:2504.08837)."""

    name: Literal["selective"] = "selective"
    capacity: PositiveInt = 1024
    """Answers that are kept; the oldest go first."""
    alpha: NonNegativeFloat = 1.0
    """The odds of an answer are |advantage|^alpha."""


class SuccessReplayConfig(Section):
    """A group without a good answer gets one from before (ARPO, arXiv:2505.16282)."""

    name: Literal["success"] = "success"
    success: float = 1.0
    """An answer is good if its total reward is at least this."""
    per_prompt: PositiveInt = 4
    """Good answers that are kept of each prompt; the oldest go first."""


class RecomposedReplayConfig(Section):
    """An iteration learns from short right and long wrong answers, and from the others later (RoRecomp,
    arXiv:2509.25958)."""

    name: Literal["recomposed"] = "recomposed"
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The share of a group's right answers that are learnt from at once, the shortest, and of its wrong ones, the
    longest; rounded up."""
    success: float = 1.0
    """An answer is right if its total reward is at least this."""
    compensation: tuple[Share, Share] = (1.0, 0.5)
    """The probability that an iteration also learns from answers that earlier ones left out, at most as many as it
    leaves out itself: at the start and at the end of training, along half a cosine between. 0, 0: they never count."""
    capacity: PositiveInt = 1024
    """Answers that wait; the oldest go first."""


class DifficultyWeightingConfig(Section):
    """Advantages of a group are scaled by its success rate (VL-Cogito, arXiv:2507.22607; Observe-R1,
    arXiv:2505.12432)."""

    name: Literal["difficulty"] = "difficulty"
    stages: Annotated[tuple[Curve, ...], Field(min_length=1)] = ("easy", "medium", "hard")
    """The groups that count in full, stage after stage, each for an equal part of training. VL-Cogito's: `easy`
    (success above a half), `medium` (near a half), `hard` (below a half), and its filters of these groups, `easy_only`,
    `medium_only` and `hard_only`; `parabola` is Observe-R1's 4p(1 - p)."""
    success: float = 1.0
    """An answer is good if its total reward is at least this."""


class MixedDemonstrationsConfig(Section):
    """A sample's demonstration as an answer of its group (LUFFY, arXiv:2504.14945; EasyVideoR1, arXiv:2604.16893)."""

    share: Share = 1.0
    """The share of groups with a demonstration, of those whose samples have one."""
    shaping: PositiveFloat | None = None
    """LUFFY's gamma (0.1 there): a token of probability p counts gamma p / (p + gamma)^2. Unset: each counts 1."""


class TurnFilterConfig(Section):
    """Episodes with an empty turn, one with neither a call nor an answer, are not trained on (SimpleTIR,
    arXiv:2509.02479)."""

    below: dict[str, float] = Field(default_factory=dict)
    """A turn is empty if a value that the environment measured of it (`turns/info/NAME`) is less than this."""
    above: dict[str, float] = Field(default_factory=dict)
    """A turn is empty if a measured value is more than this, such as `{no_answer: 0, malformed: 0}` with tools."""
    cut_off: bool = True
    """A turn without end token is empty."""

    @model_validator(mode="after")
    def _some_turn_is_empty(self) -> TurnFilterConfig:
        if not (self.below or self.above or self.cut_off):
            raise ValueError("no turn is empty: name a measured value under below or above, or leave the filter out")
        return self


PromptsConfig = Annotated[
    Annotated[ShuffledPromptsConfig, Tag("shuffled")]
    | Annotated[VarianceAwarePromptsConfig, Tag("variance_aware")]
    | Annotated[ValuedPromptsConfig, Tag("valued")]
    | Annotated[StagedPromptsConfig, Tag("staged")]
    | Annotated[HardestPromptsConfig, Tag("hardest")]
    | Annotated[MixturePromptsConfig, Tag("mixture")]
    | Annotated[AngleConcentrationPromptsConfig, Tag("angle_concentration")]
    | Annotated[GrowingPromptsConfig, Tag("growing")]
    | Annotated[WrittenPromptsConfig, Tag("written")],
    Discriminator(tag_of("name", "shuffled")),
]
GroupSamplingConfig = Annotated[
    Annotated[FixedGroupSamplingConfig, Tag("fixed")]
    | Annotated[DynamicGroupSamplingConfig, Tag("dynamic")]
    | Annotated[AdaptiveGroupSamplingConfig, Tag("adaptive")]
    | Annotated[SpreadGroupSamplingConfig, Tag("spread")]
    | Annotated[TimedGroupSamplingConfig, Tag("timed")],
    Discriminator(tag_of("name", "fixed")),
]
ReplayConfig = Annotated[
    Annotated[SelectiveReplayConfig, Tag("selective")]
    | Annotated[SuccessReplayConfig, Tag("success")]
    | Annotated[RecomposedReplayConfig, Tag("recomposed")],
    Discriminator(tag_of("name", "selective")),
]


class DataConfig(Section):
    """The samples, and the sizes of one iteration."""

    path: str
    """A JSON Lines file, or `shapeworld:train` for an embedded split."""
    validation: str | None = None
    """Samples for evaluation; unset: no evaluation."""
    heldout: str | None = None
    """A second set to evaluate beside the first, such as compositions that training never shows."""
    groups: PositiveInt = 8
    """Prompts in one iteration."""
    group_size: Annotated[int, Field(ge=2)] = 12
    """Trajectories of each prompt."""
    micro_batch: PositiveInt | None = None
    """Trajectories in one pipeline call, the same for rollout and update; must divide groups x group_size.
    Unset: all in one call."""
    prompts: PromptsConfig = ShuffledPromptsConfig()
    """The order of prompts."""
    group_sampling: GroupSamplingConfig = FixedGroupSamplingConfig()
    """The number of answers that are sampled for each prompt, and those that are kept."""
    replay: ReplayConfig | None = None
    """The past answers that are trained on again; unset: none."""
    weighting: DifficultyWeightingConfig | None = None
    """The weight of each group; unset: all alike."""
    starts: StartsConfig | None = None
    """The rule for what rows start with beside their samples (hints, budgets, ...); unset: nothing."""
    demonstrations: MixedDemonstrationsConfig | None = None
    """Demonstrations among the policy's own answers; unset: none."""
    turn_filter: TurnFilterConfig | None = None
    """The episodes that are not trained on for one of their turns; unset: all are."""
    token_budget: PositiveInt | None = None
    """The number of tokens that an iteration learns from, in answers drawn at random from those with an advantage
    (C3PO, arXiv:2506.14731); unset: all of them."""
    controller: ControllerConfig | None = None
    """A rule that moves settings between rounds, such as the temperature; unset: all stay as they are."""


class AnswersConfig(Section):
    """The text that tasks add to the prompts of samples that name a `task` and no rewards."""

    task: str | None = None
    """The task of samples that name neither a task nor rewards."""
    thinking: Literal["off", "tags", "native"] = "off"
    """`tags`: the prompt requests reasoning between <think> tags and the answer between <answer> tags, and a format
    reward checks that. `native`: the model reasons as its makers trained it to. `off`: the answer alone."""
    space: Literal["pixel", "norm_1", "norm_1000"] | None = None
    """The unit of coordinates in answers; unset: the one that the model's family was trained with."""
    reading: Literal["strict", "lenient"] = "strict"
    """`lenient`: rewards accept the forms that models write which were never taught one (docs/rewards.md, "Lenient
    reading"), for base models and for the evaluation of other people's models."""
