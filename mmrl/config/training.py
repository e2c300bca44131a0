"""The loop, its optimizer, the interval of evaluations, the gauge of reward hacking, overlap and the output folder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from mmrl.config.policy import Precision
from mmrl.config.sampling import AnySamplingConfig, SamplingKind
from mmrl.config.section import Section, Seed
from mmrl.config.servers import ServersConfig


class OverlapConfig(Section):
    """Rollouts that a thread samples with a copy of the policy, while the policy is trained."""

    number = "lag"

    lag: Annotated[int, Field(ge=0)] = 0
    """The answers of an iteration are sampled with the parameters of this many iterations before it, while those
    iterations are learnt from. 0: with the present parameters, and nothing is sampled during an update."""
    stream: bool = False
    """True: a micro-batch is backpropagated as soon as its groups are scored, while the iteration's other answers are
    still being sampled; the update follows after the last one. With a lag of 0 the gradient is that of an iteration
    without it."""

    interrupt: bool = False
    """True: servers get new weights while they write answers, which go on under them. Each token has the version that
    wrote it, and the lag is the most that one is behind. For `run.servers.weights: folder`, and with a lag."""

    @property
    def is_on(self) -> bool:
        """True if a copy of the policy samples."""
        return self.lag > 0 or self.stream


class HackingConfig(Section):
    """A comparison of the rewards that are only measured with the trained ones, as a run goes."""

    window: Annotated[int, Field(ge=3)] = 10
    """Iterations whose mean rewards are compared with those of as many earlier ones."""
    measured: tuple[str, ...] = ()
    """Names of rewards whose weight is 0; empty: all of them."""
    then: Literal["warn", "stop", "refresh"] = "warn"
    """The run's answer where a trained reward rose and a measured one fell. `warn`: a message. `stop`: it ends, as
    finished. `refresh`: rewards that learn (`cotrained`) do so in the next window alone, and in no other iteration."""


MAX_REPLAY_GAP: dict[Precision, float] = {"float32": 1e-6, "float16": 1e-5, "bfloat16": 1e-4}
"""A replay repeats its rollout to the bit in every precision, so a gap is a fault. On pipelines as small as those of
the tests, a forward pass that is rounded differently moves log-probabilities by about 1e-7 to 3e-6 in float32, 1e-5 to
1e-3 in float16 and 1e-4 to 1e-2 in bfloat16. The bounds lie at the low ends of that, and none above 1e-4, the usual
clip range: past it, rounding alone would clip."""

MAX_TOKEN_REPLAY_GAP: dict[Precision, float] = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.3}
"""The bounds for tokens: a rollout reads them one by one and a replay all at once, which is rounded differently.
On tiny models of eleven families that is at most 5e-6 in float32 and 0.07 in bfloat16."""


class TrainingConfig(Section):
    """The loop."""

    iterations: PositiveInt = 100
    """Rounds of rollout, scoring and update."""
    updates: PositiveInt = 1
    """Optimizer updates in one pass over an iteration's rollouts; each takes an equal share of the micro-batches."""
    epochs: PositiveInt = 1
    """Passes over each iteration's rollouts."""
    max_replay_gap: PositiveFloat | None = None
    """The run fails when a replay differs from its rollout by more. Unset: by `policy.dtype`; for denoising steps 1e-6
    in float32, 1e-5 in float16, 1e-4 in bfloat16, for tokens 1e-4, 0.05 and 0.3."""
    min_valid_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The run fails when fewer rewards than this could be scored."""
    max_kl: PositiveFloat | None = None
    """The run ends, as finished, after the first iteration whose distance from the reference is above this; it can be
    resumed with a larger one. The distance is `kl` as the algorithm logs it; where it has no penalty, that is measured
    after each iteration: mean_distance of denoising steps, k3 of tokens, the MSE of velocities where nothing is drawn
    by chance."""
    max_tokens: PositiveInt | None = None
    """The run ends, as finished, after the iteration in which the answers trained on have this many tokens in all; it
    can be resumed with more. For policies that answer in text."""
    hacking: HackingConfig | None = None
    """Compares rewards that are only watched with the trained ones as the run goes; unset: evaluations alone do."""
    save_every: PositiveInt = 50
    """Iterations between checkpoints; the best and the last two are kept."""
    keep_every: PositiveInt | None = None
    """Checkpoints whose iteration is a multiple of this are kept as well; a multiple of `save_every`. Unset: none."""

    @model_validator(mode="after")
    def _kept_ones_are_saved(self) -> TrainingConfig:
        if self.keep_every is not None and self.keep_every % self.save_every:
            raise ValueError(
                f"keep_every: {self.keep_every} is no multiple of save_every, which is {self.save_every}: only what is "
                "saved can be kept"
            )
        return self

    def replay_gap_bound(self, precision: Precision, sampling: SamplingKind = "denoising") -> float:
        """Return the largest permitted difference between a replay and its rollout."""
        if self.max_replay_gap is not None:
            return self.max_replay_gap
        return (MAX_REPLAY_GAP if sampling == "denoising" else MAX_TOKEN_REPLAY_GAP)[precision]


class EvaluationConfig(Section):
    """Scoring a fixed set of prompts with fixed noise."""

    every: PositiveInt | None = None
    """Iterations between evaluations; unset: only before and after training."""
    prompts: PositiveInt = 64
    """The number of validation prompts, from the first."""
    samples: PositiveInt = 1
    """Draws per prompt."""
    batch: PositiveInt = 64
    """Trajectories in one pipeline call."""
    diversity_prompts: Annotated[int, Field(ge=0)] = 0
    """Validation prompts that are drawn several times each, to measure the diversity in a group; 0: do not."""
    diversity_draws: Annotated[int, Field(ge=2)] = 8
    """Draws of each of those."""
    seed: Seed = 1234
    rewards: tuple[str, ...] = ()
    """Rewards that are measured and never trained on."""
    best: str = "total"
    """The metric of evaluations by whose mean the best checkpoint is chosen, the highest: the total, a reward, or one
    of its further scores, such as `critical_entropy` (Skywork-R1V3)."""
    sampling: AnySamplingConfig | None = None
    """Unset: as in training, but along the ODE. Set: it stands alone, and takes nothing from the training's."""
    greedy: bool = False
    """True evaluates policies that write tokens once more, with the likeliest token each time."""
    logits: dict[str, float] = Field(default_factory=dict)
    """Set: evaluations draw each token from the softmax of a weighted sum of logits, `{base: 1.0, policy: 0.5}`, of
    models of `models` and of `policy` (docs/inference.md)."""
    heads: dict[str, float] = Field(default_factory=dict)
    """Set: evaluations blend the heads of `policy.heads` with these weights; unset: in equal parts."""
    original_prompt: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the user's prompt in the guidance of pictures that `joint_grpo` draws; the rest is that of the text
    that the policy wrote (Parrot). Above 0, drawing costs twice."""


class TimeoutsConfig(Section):
    """The longest waits of a run with several processes, in seconds; all of them end when one is exceeded."""

    start: PositiveFloat = 300.0
    """From the first process to the last one."""
    silence: PositiveFloat = 30.0
    """Without a sign of life of a process."""
    lateness: PositiveFloat = 1800.0
    """For a process that lives, but does not arrive where the others wait for it."""


Place = Literal["auto", "replicas", "window", "strict"]
"""The layout of a model's parameters over several processes; see `RunConfig.place`."""


class RunConfig(Section):
    """The output of a run, and the processes that compute it."""

    dir: str = "runs/{name}/seed-{seed}"
    """The run folder; `{name}` and `{seed}` are filled in."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Besides metrics.jsonl, which is always written."""
    display: Literal["auto", "rich", "plain", "quiet"] = "auto"
    """`auto`: a live panel in a terminal, plain lines elsewhere."""
    pictures: Annotated[int, Field(ge=0)] = 16
    """Prompts in the before/after grid."""
    place: Place = "auto"
    """The layout of the trained model over several processes. `replicas`: each has the whole model, and gradients are
    summed once an update. `window`: each has a part of parameters, gradients and optimizer state, and the whole model
    while it samples, updates or evaluates. `strict`: for diffusion and flow models that do not fit whole together with
    their gradients; each process has a part all the time once it has loaded the model, and gathers one block after
    another in every call. All processes then make equally many calls, so it trains by policy gradients, DiffusionNFT
    and AWM, in equal shares. `auto`: replicas."""
    overlap: OverlapConfig = OverlapConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    servers: ServersConfig | None = None
    """Servers that write the answers of a VLM. Unset: the policy writes them in process."""


class SignalConfig(Section):
    """A factor on the learning rate that follows the signal-to-noise ratio of the gradient (OBLR-PO).

    The factor is the share of signal in the squared norm of a gradient, as AdamW's two moments tell.
    """

    number = "least"

    least: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The factor is no less than this, and at most 1."""
    after: Annotated[int, Field(ge=2)] = 10
    """The number of first updates for which the factor is 1, because the moments are still noise."""


class OptimizerConfig(Section):
    """AdamW with a learning-rate schedule."""

    lr: PositiveFloat = 1e-4
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of AdamW's running means of the gradient and of its square."""
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: stay, or fall to zero at the last iteration."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Updates during which the learning rate rises from zero."""
    signal: SignalConfig | None = None
    """Set: the learning rate is the less, the noisier the gradient; `lr` is that of a gradient without noise."""
    ema: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Decay of an exponential moving average of the trained parameters; evaluated and saved in their place."""
