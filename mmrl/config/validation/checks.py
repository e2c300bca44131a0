"""All cross-field validation of a configuration; it runs before a model is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from string import Formatter

from mmrl.config.policy import PolicyConfig, VLMConfig
from mmrl.config.sampling import SAMPLING_OF, ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.config.validation.data import data_errors
from mmrl.config.validation.denoising import denoising_errors
from mmrl.config.validation.rewards import reward_errors


def validation_errors(config: TrainConfig, capabilities: Collection[str] | None = None) -> list[str]:
    """Return one message for each combination of settings that cannot work; `BatchPlan` checks batch sizes.

    `capabilities` are the policy's (`mmrl.policy.Capability`); None leaves out what depends on them.
    """
    found = [
        *_policy_errors(config),
        *config.algorithm.validation_errors(config),
        *reward_errors(config),
        *_evaluation_errors(config),
        *data_errors(config, capabilities),
    ]
    if isinstance(config.sampling, SamplingConfig):
        found += denoising_errors(config, config.sampling)
    if capabilities is not None:
        found += config.algorithm.capability_errors(capabilities)
    return found


def _policy_errors(config: TrainConfig) -> Iterator[str]:
    policy, sampling, evaluated = config.policy, config.sampling, config.evaluation.sampling
    expected = SAMPLING_OF[policy.kind]
    if sampling.kind != expected:
        yield f"sampling.kind: a policy of kind {policy.kind} has {expected}"
    if evaluated is not None and evaluated.kind != expected:
        yield f"evaluation.sampling.kind: a policy of kind {policy.kind} has {expected}"
    if isinstance(sampling, TokenSamplingConfig | ImageTokenSamplingConfig) and sampling.temperature == 0:
        yield (
            "sampling.temperature: at 0 every answer to a prompt is the same, so there is nothing to learn from: take "
            "1.0, and set evaluation.greedy"
        )
    if config.pretraining is not None:
        if config.pretraining.iterations >= config.training.iterations:
            yield "pretraining.iterations: they are the first of training.iterations, which must be more"
        if isinstance(sampling, SamplingConfig):
            yield (
                "pretraining: a policy that generates media is pre-trained in a run by itself: train it with the "
                "algorithm sft or dpo first, and set policy.model to what that saved"
            )
    if config.evaluation.greedy and isinstance(policy, PolicyConfig):
        yield "evaluation.greedy: only policies that write tokens can be greedy"
    if isinstance(policy, VLMConfig):
        for name, part in (("vision", policy.vision), ("connector", policy.connector)):
            if not part.train and part.lr_scale != 1:
                yield f"policy.{name}.lr_scale: policy.{name}.train is false"


def _evaluation_errors(config: TrainConfig) -> Iterator[str]:
    evaluation = config.evaluation
    wanted = evaluation.every or evaluation.rewards or evaluation.diversity_prompts or config.data.heldout
    if wanted and config.data.validation is None:
        yield "data.validation is missing: evaluation is configured, and there are no samples for it"
    if isinstance(evaluation.sampling, SamplingConfig) and evaluation.sampling.branch.at:
        yield "evaluation.sampling.branch: pictures to look at would resemble each other"
    if not _placeholders(config.run.dir) <= {"name", "seed"}:
        yield f"run.dir: {config.run.dir!r} may hold {{name}} and {{seed}} alone in braces"


def _placeholders(template: str) -> set[str]:
    try:
        return {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError:  # a brace without its partner
        return {template}
