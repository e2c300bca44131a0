"""The sampler of a policy: steps, guidance, exploration noise, temperature."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, Tag

from mmrl.components import Registry
from mmrl.config.section import Section, registered, tag_of

_TRANSITIONS = "mmrl.generation.diffusion.transitions"
TRANSITIONS: Registry[Any] = Registry(
    "mmrl.transitions",
    "transition",
    {
        "ode": f"{_TRANSITIONS}:ODE",
        "flow_sde": f"{_TRANSITIONS}:FlowSDE",
        "dance_sde": f"{_TRANSITIONS}:DanceSDE",
        "noisy_ode": f"{_TRANSITIONS}:NoisyODE",
        "cps": f"{_TRANSITIONS}:CPS",
        "ddim": f"{_TRANSITIONS}:DDIM",
        "native": f"{_TRANSITIONS}:Native",
    },
    base=f"{_TRANSITIONS}:Transition",
)
"""The transitions by name; packages add theirs in the entry-point group `mmrl.transitions`."""


class LearnedNoiseConfig(Section):
    """A noise level that is trained with the policy: a small network, whose output begins at `noise_level`."""

    low: PositiveFloat
    """It never falls below this."""
    high: PositiveFloat
    """It never rises above this."""
    hidden: PositiveInt = 16
    """Units of the network's one hidden layer."""
    lr_scale: PositiveFloat = 1.0
    """Its learning rate, as a share of `optimizer.lr`."""
    inputs: Literal["sigma", "latents"] = "sigma"
    """`sigma`: one noise level a step. `latents`: one for each latent dimension, from sigma, the dimension's latent and
    its velocity, through which the network knows the prompt (ReinFlow)."""
    entropy: NonNegativeFloat = 0.0
    """The weight of the entropy in the objective, in nats a dimension: above 0, it keeps the noise from vanishing
    (ReinFlow)."""


class TransitionConfig(Section):
    """The transition with which the sampler draws x' given x."""

    name: Annotated[str, registered(TRANSITIONS)] = "ode"
    """`ode`, `flow_sde`, `dance_sde`, `noisy_ode`, `cps`, `ddim`, `native`, an installed transition, or
    `path/to/file.py:Name`. `ode` is the scheduler's own step, deterministic for flows: it leaves no decisions, so no
    log-probabilities. `noisy_ode` is the same step plus noise (ReinFlow)."""
    noise_level: NonNegativeFloat = 0.7
    """flow_sde: a; dance_sde, noisy_ode: eta; cps: a in [0, 1]; ddim: eta. `native` (DDPM, LCM, Euler ancestral, SCM)
    draws the scheduler's own noise and ignores this; to TCD it is gamma."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Further fields of a transition of your own, by name."""
    learned: LearnedNoiseConfig | None = None
    """Train the noise level too (ReinFlow, arXiv:2505.22094; Flow-Noise of pi_RL, arXiv:2510.25889): what explores is
    then chosen by the reward, within bounds. Pictures are drawn along the ODE as ever, without it."""


class WindowConfig(Section):
    """The denoising steps that are stochastic and trained; the others follow the ODE, except as `before` says."""

    size: PositiveInt | None = None
    """Steps in the window; unset: all of them."""
    low: Annotated[int, Field(ge=0)] = 0
    """First step that a window may begin at."""
    high: PositiveInt | None = None
    """The end (exclusive) of the steps that a window may cover; unset: the last stochastic step."""
    move: Literal["random", "slide", "grow"] = "random"
    """`random`: drawn anew in each iteration (Flow-GRPO-Fast). `slide`: from the noisiest step to the last, and again
    from the first (MixGRPO). `grow`: it holds the last `size` steps, and reaches back to earlier ones until it holds
    all (the backward progressive training of B2-DiffuRL)."""
    every: PositiveInt = 25
    """slide, grow: iterations before it moves."""
    stride: PositiveInt = 1
    """slide, grow: by how many steps it moves."""
    decay: NonNegativeFloat = 0.0
    """slide: it stays for every * exp(-decay * s) iterations where it begins s steps past `decay_from` (MixGRPO's
    exponential decay, there 0.1): fewer on late steps, which only refine."""
    decay_from: Annotated[int, Field(ge=0)] = 0
    """slide: see `decay`."""
    before: Literal["ode", "noise"] = "ode"
    """The steps before the window: along the ODE, or drawn with the transition's noise and not trained (B2-DiffuRL).
    Rows of a tree (`sampling.branch`) share that noise."""
    include_last: bool = False
    """True: the last step, to sigma' = 0, may be stochastic too, so that samplers of one and two steps have one and two
    decisions (ReinFlow). Only for transitions with noise there: noisy_ode."""

    def stochastic_steps(self, steps: int) -> int:
        """Return how many of a sampler's first steps may be stochastic."""
        return steps if self.include_last else steps - 1


class BranchConfig(Section):
    """Rows of a group share their first steps and then branch, so that differences result from later decisions."""

    at: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """The decisions at which every branch parts, counted from the window's first. Rows of a tree begin with the same
    noise and take the same steps until then. Empty: rows share no steps."""
    branching_factor: Annotated[int, Field(ge=2)] = 2
    """The number of branches after each branching step; a tree has
    branching_factor ** len(at) rows, and a group one tree or several."""

    @property
    def num_leaves(self) -> int:
        """Rows of a tree."""
        return int(self.branching_factor ** len(self.at))


class ZigzagConfig(Section):
    """Zigzag sampling: the first steps are taken, undone with weaker guidance, and taken again (arXiv:2412.10891).

    What the stronger guidance put into the latents stays in them, so the second pass begins from noise that knows more
    of the prompt. Each of these steps costs three.
    """

    steps: PositiveInt = 1
    """The number of first steps that are taken twice."""
    guidance_scale: Annotated[float, Field(ge=1)] = 1.0
    """The guidance scale of the inversion, below that of the sampler."""
    rows: Literal["all", "alternate"] = "all"
    """`alternate`: every second row of a tree (`sampling.branch`). The others begin these steps anew from where they
    began, so that the rewards of neighbours tell what the zigzag gained (MVC-ZigAL, arXiv:2505.20107)."""


class SamplingConfig(Section):
    """The sampler of a diffusion or flow model."""

    kind: Literal["denoising"] = "denoising"
    """As the policy says; it need not be written."""
    steps: PositiveInt = 10
    guidance_scale: NonNegativeFloat | None = None
    """Passed to the pipeline; unset: the pipeline's own default."""
    height: PositiveInt | None = None
    width: PositiveInt | None = None
    num_frames: PositiveInt | None = None
    negative_prompt: str | None = None
    transition: TransitionConfig = TransitionConfig()
    window: WindowConfig = WindowConfig()
    branch: BranchConfig = BranchConfig()
    zigzag: ZigzagConfig | None = None
    """Set: the first steps are taken twice."""
    pipeline_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the pipeline's `__call__` by name; checked against its signature."""


class DraftConfig(Section):
    """Speculative decoding: a drafter guesses the next tokens, and one pass of the policy checks them all."""

    tokens: PositiveInt = 4
    """The number of guesses that a pass checks."""
    order: Annotated[int, Field(ge=2)] = 4
    """The drafter counts which token follows which; this is the number of tokens that it looks at, the next one
    included."""
    answers: PositiveInt = 1024
    """The number of last answers that it counts."""
    relearn: bool = True
    """False: it keeps the first answers, and falls behind a policy that is trained."""


class TokenSamplingConfig(Section):
    """The sampler of texts: token by token, from the model's distribution at a temperature."""

    kind: Literal["tokens"] = "tokens"
    """As the policy says; it need not be written."""
    temperature: NonNegativeFloat = 1.0
    """Log-probabilities, ratios and entropies are those of the distribution at this temperature; 0 takes the likeliest
    token each time, for evaluation alone."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Only the likeliest tokens that hold this share of the probability; log-probabilities stay those of all tokens."""
    top_k: PositiveInt | None = None
    """The number of likeliest tokens that are sampled from; unset: all."""
    max_new_tokens: PositiveInt = 256
    """Longer answers are cut off."""
    drafts: DraftConfig | None = None
    """Set: speculative decoding in process. Answers do not depend on the drafter."""


class ImageTokenSamplingConfig(Section):
    """The sampler of images of tokens: as of texts, with guidance. The model knows the number of tokens of an image."""

    kind: Literal["image_tokens"] = "image_tokens"
    """As the policy says; it need not be written."""
    temperature: NonNegativeFloat = 1.0
    """Log-probabilities, ratios and entropies are those of the distribution at this temperature; 0 takes the likeliest
    token each time, for evaluation alone."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Only the likeliest tokens that hold this share of the probability; log-probabilities stay those of all tokens."""
    top_k: PositiveInt | None = None
    """The number of likeliest tokens that are sampled from; unset: all."""
    guidance_scale: NonNegativeFloat = 1.0
    """s in l = u + s * (c - u): logits after the prompt (c) and after an empty one (u). Log-probabilities and gradients
    are those of the mixture, at twice the computation. 1: after the prompt alone. Janus was made for 5, Emu3 for 3."""
    negative_prompt: str | None = None
    """In place of the empty prompt; not for Janus."""


AnySamplingConfig = Annotated[
    Annotated[SamplingConfig, Tag("denoising")]
    | Annotated[TokenSamplingConfig, Tag("tokens")]
    | Annotated[ImageTokenSamplingConfig, Tag("image_tokens")],
    Discriminator(tag_of("kind", "denoising")),
]
SamplingKind = Literal["denoising", "tokens", "image_tokens"]
SAMPLING_OF: dict[str, SamplingKind] = {
    "pipeline": "denoising",
    "vlm": "tokens",
    "image_tokens": "image_tokens",
}
"""The kind of sampling that each kind of policy has."""


def decisions_per_trajectory(sampling: AnySamplingConfig) -> int:
    """Return the number of trained decisions of one trajectory.

    For denoising, the stochastic steps in the window. For texts, the most tokens that an answer may have. For images of
    tokens 1: only the model knows the number of tokens.
    """
    if isinstance(sampling, TokenSamplingConfig):
        return sampling.max_new_tokens
    if isinstance(sampling, ImageTokenSamplingConfig):
        return 1
    if sampling.transition.name == "ode" or sampling.transition.noise_level == 0:
        return 0
    window = sampling.window
    end = window.stochastic_steps(sampling.steps)
    reach = min(window.high or end, end) - window.low
    most = reach if window.move == "grow" else window.size or reach
    return max(0, min(most, reach))
