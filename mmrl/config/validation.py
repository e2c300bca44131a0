"""Cross-field validation: settings that are each valid, and that have no effect or cannot work together.

Each function yields one message for each problem, which begins with the key and ends with the remedy. The algorithm,
its advantage and its policy loss, and the transition state their own constraints (`validation_errors`,
`config_errors`); `validation_errors` gathers them all before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from string import Formatter

from mmrl.components import is_file_reference
from mmrl.config.algorithms.advantage import ADVANTAGES, AdvantageConfig
from mmrl.config.algorithms.base import SCORED, AlgorithmConfig, KLConfig
from mmrl.config.algorithms.preference import OnlineDPOConfig
from mmrl.config.blend_validation import blend_errors
from mmrl.config.controller import controller_errors
from mmrl.config.data import (
    AdaptiveGroupSamplingConfig,
    DynamicGroupSamplingConfig,
    FixedGroupSamplingConfig,
    RecomposedReplayConfig,
    SelectiveReplayConfig,
    ShuffledPromptsConfig,
    SuccessReplayConfig,
    TimedGroupSamplingConfig,
    ValuedPromptsConfig,
)
from mmrl.config.denoising_validation import denoising_errors
from mmrl.config.growing import GrowingPromptsConfig
from mmrl.config.named_models import POLICY, model_errors, trained_names
from mmrl.config.overlap_validation import overlap_errors
from mmrl.config.policy import PolicyConfig, VLMConfig
from mmrl.config.rewards import REMOTE, LagrangeConfig, RewardConfig, constrained, summed
from mmrl.config.sampling import SAMPLING_OF, ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
from mmrl.config.servers_validation import server_errors
from mmrl.config.train import TrainConfig
from mmrl.config.written_prompts import written_prompt_errors


def validation_errors(config: TrainConfig, capabilities: Collection[str] | None = None) -> list[str]:
    """Return one message for each combination of settings that cannot work; `BatchPlan` checks batch sizes.

    `capabilities` are the policy's (`mmrl.policy.Capability`); None leaves out what depends on them.
    """
    found = [
        *_policy_errors(config),
        *_fp8_errors(config),
        *config.algorithm.validation_errors(config),
        *reward_errors(config),
        *_evaluation_errors(config),
        *blend_errors(config),
        *model_errors(config),
        *written_prompt_errors(config),
        *_weight_errors(config),
        *data_errors(config, capabilities),
        *overlap_errors(config),
        *environment_errors(config),
        *server_errors(config),
        *_stage_errors(config, capabilities),
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
    if isinstance(sampling, TokenSamplingConfig) and isinstance(evaluated, TokenSamplingConfig) and evaluated.drafts:
        yield "evaluation.sampling.drafts: evaluations are written as rollouts are: set it in sampling, or leave it out"
    if isinstance(sampling, TokenSamplingConfig | ImageTokenSamplingConfig) and sampling.temperature == 0:
        yield (
            "sampling.temperature: at 0 every answer to a prompt is the same, so there is nothing to learn from: take "
            "1.0, and set evaluation.greedy"
        )
    if config.training.max_tokens is not None and not isinstance(sampling, TokenSamplingConfig):
        yield "training.max_tokens: only policies that answer in text count tokens: set training.iterations"
    if config.pretraining is not None and config.pretraining.iterations >= config.training.iterations:
        yield "pretraining.iterations: they are the first of training.iterations, which must be more"
    if config.evaluation.greedy and isinstance(policy, PolicyConfig):
        yield "evaluation.greedy: only policies that write tokens can be greedy"
    if isinstance(policy, VLMConfig):
        for name, part in (("vision", policy.vision), ("connector", policy.connector)):
            if not part.train and part.lr_scale != 1:
                yield f"policy.{name}.lr_scale: policy.{name}.train is false"


def _fp8_errors(config: TrainConfig) -> Iterator[str]:
    fp8 = config.policy.fp8 if isinstance(config.policy, VLMConfig) else None
    if fp8 is None:
        return
    if config.run.servers is not None:
        yield "policy.fp8: servers write the answers, in the precision that they were started with: leave it out"
    corrected = getattr(config.algorithm, "mismatch", None) is not None or config.training.max_replay_gap is not None
    if fp8.flow == "rollout" and config.algorithm.experience == "rollouts" and not corrected:
        yield (
            "policy.fp8.flow: rollout computes other log-probabilities than the updates do, which ends the run: choose "
            "unified, or correct for it with algorithm.mismatch.cap=2.0"
        )


def _weight_errors(config: TrainConfig) -> Iterator[str]:
    """Yield a message for an algorithm with a weight that is no term of a mix."""
    if config.algorithm.weight != 1.0:
        yield f"algorithm.weight: {config.algorithm.name} is alone, and its weight has no effect: leave it out, or mix"
    if config.algorithm.weight_end is not None:
        yield f"algorithm.weight_end: {config.algorithm.name} is alone, and its weight has no effect: leave it out"
    if getattr(config.algorithm, "path", None) is not None:
        yield f"algorithm.path: {config.algorithm.name} alone learns from data.path: name the data set there"
    if config.pretraining is not None:
        yield from _pretraining_weight_errors(config.pretraining.algorithm)


def _pretraining_weight_errors(algorithm: AlgorithmConfig) -> Iterator[str]:
    """Yield a message for each key of a term of a mix that the algorithm of `pretraining` has."""
    if algorithm.weight != 1.0:
        yield "pretraining.algorithm.weight: it is alone, so its weight has no effect: leave it out"
    if algorithm.weight_end is not None:
        yield "pretraining.algorithm.weight_end: it is alone, so its weight has no effect: leave it out"
    if getattr(algorithm, "path", None) is not None:
        yield "pretraining.algorithm.path: it is for terms of a mix: name the data set in pretraining.path"


def _stage_errors(config: TrainConfig, capabilities: Collection[str] | None) -> Iterator[str]:
    """Yield one message for each setting of an earlier stage that cannot work, by itself or beside the others."""
    if not config.stages:
        if config.rounds > 1:
            yield f"rounds: {config.rounds} rounds of stages, and there are no stages: leave it out"
        return
    own = set(validation_errors(config.model_copy(update={"stages": ()}), capabilities))
    for number, stage in enumerate(config.stages):
        staged = config.staged(stage)
        trained = trained_names(config)
        same_kind = staged.policy.kind == config.policy.kind
        if stage.train not in trained:
            yield f"stages.{number}.train: {stage.train} is not trained in this run, and {' and '.join(trained)} may be"
        elif stage.begin is not None and (stage.begin == stage.train or stage.begin not in (POLICY, *config.models)):
            others = ", ".join(name for name in (POLICY, *config.models) if name != stage.train)
            yield f"stages.{number}.begin: {stage.train} may begin as another model of the run ({others})"
        elif stage.train != POLICY and getattr(staged.algorithm, "critic", None) is not None:
            yield f"stages.{number}.algorithm: {staged.algorithm.name} has a critic of the policy: choose grpo"
        known = capabilities if same_kind else None  # those of another class are checked where it is known
        yield from (f"stages.{number}: {error}" for error in validation_errors(staged, known) if error not in own)
    if config.earlier_iterations > config.training.iterations:
        yield (
            "stages: they and pretraining are the first of training.iterations, which must be at least "
            f"{config.earlier_iterations}"
        )


def _evaluation_errors(config: TrainConfig) -> Iterator[str]:
    evaluation = config.evaluation
    wanted = evaluation.every or evaluation.rewards or evaluation.diversity_prompts or config.data.heldout
    if wanted and config.data.validation is None:
        yield (
            "data.validation is missing: evaluation is configured, and there are no samples for it; name some, or set "
            "evaluation={} and data.heldout=null"
        )
    if isinstance(evaluation.sampling, SamplingConfig) and evaluation.sampling.branch.at:
        yield "evaluation.sampling.branch: pictures to look at would resemble each other"
    zigzag = evaluation.sampling.zigzag if isinstance(evaluation.sampling, SamplingConfig) else None
    if zigzag is not None and zigzag.rows == "alternate":
        yield "evaluation.sampling.zigzag.rows: every picture is to be drawn alike: set all"
    if not _placeholders(config.run.dir) <= {"name", "seed"}:
        yield f"run.dir: {config.run.dir!r} may hold {{name}} and {{seed}} alone in braces"


def _placeholders(template: str) -> set[str]:
    try:
        return {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError:  # a brace without its partner
        return {template}


def reward_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each problem."""
    rewards = config.rewards
    names = [reward.known_as for reward in rewards]
    yield from _constraint_errors(config)
    yield from _condition_errors(rewards)
    yield from _cascade_errors(rewards)
    if not names and config.policy.kind != "vlm" and config.algorithm.experience in SCORED:
        yield "rewards: name at least one, as `mmrl rewards list` shows them"
    for i, name in enumerate(names):
        if name in names[:i]:
            remedy = "give args.called to one of them" if rewards[i].name == REMOTE else _second_of(name)
            yield f"rewards.{i}.name: {name} is there twice, and their scores could not be told apart: {remedy}"
    for i, name in enumerate(config.evaluation.rewards):
        if name in names:
            yield f"evaluation.rewards.{i}: {name} is trained on, so it is evaluated in any case"


def _second_of(name: str) -> str:
    """Return what to do about a reward that is named twice."""
    if is_file_reference(name):
        return "give one of them another name in the file"
    return "a file of yours may derive a class from it that has another `name`"


def _condition_errors(rewards: Sequence[RewardConfig]) -> Iterator[str]:
    """Yield one message for each `counts_if` that names no other reward, or of which one waits for another in turn."""
    outcomes = {reward.known_as: reward.counts_if.reward for reward in rewards if reward.counts_if is not None}
    names = [reward.known_as for reward in rewards]
    for i, reward in enumerate(rewards):
        if reward.counts_if is None:
            continue
        outcome, others = reward.counts_if.reward, [name for name in names if name != reward.known_as]
        chain = [reward.known_as]
        while chain[-1] in outcomes and outcomes[chain[-1]] not in chain:
            chain.append(outcomes[chain[-1]])
        if outcome not in others:
            there = f"there are {', '.join(others)}" if others else "there is no other"
            yield f"rewards.{i}.counts_if.reward: {outcome} is not another reward of this run: {there}"
        elif outcomes.get(chain[-1]) == reward.known_as:
            yield (
                f"rewards.{i}.counts_if.reward: {' counts if '.join([*chain, reward.known_as])} again: "
                "one of them must count in any case"
            )
        if reward.at_least is not None:
            yield (
                f"rewards.{i}.counts_if: {reward.known_as} has at_least, so it is no part of the total in any case: "
                "choose one"
            )
        elif reward.weight == 0:
            yield (
                f"rewards.{i}.counts_if: {reward.known_as} has the weight 0, so it never counts: leave one of them out"
            )


def _cascade_errors(rewards: Sequence[RewardConfig]) -> Iterator[str]:
    """Yield one message for each name in `after` that is no earlier reward."""
    names: list[str] = []
    for i, reward in enumerate(rewards):
        for name in reward.after:
            if name not in names:
                there = f"there are {', '.join(names)}" if names else "there is none"
                yield f"rewards.{i}.after.{name}: {reward.known_as} can only wait for a reward above it: {there}"
        names.append(reward.known_as)


def _constraint_errors(config: TrainConfig) -> Iterator[str]:
    rewards = config.rewards
    is_field = "advantage" in type(config.algorithm).model_fields  # a class variable has no effect on what is learnt
    is_read = is_field and config.algorithm.reads_advantages
    advantage = getattr(config.algorithm, "advantage", None) if is_read else None
    if constrained(rewards):
        if not (isinstance(advantage, AdvantageConfig) and advantage.takes_constraints):
            name = "this algorithm" if advantage is None else advantage.name
            choices = [each for each in ADVANTAGES.built_in if ADVANTAGES.load(each).takes_constraints]
            yield (
                "rewards: at_least adds a constraint's advantages to those of the other rewards, which goes with "
                f"algorithm.advantage.name {', '.join(choices)}, and not with {name}"
            )
        if not summed(rewards):
            yield "rewards: all of them are constraints (at_least), so nothing is maximised: take at_least out of one"
        if config.data.group_sampling.name == "dynamic":
            yield (
                "data.group_sampling: dynamic drops groups whose totals are equal, which a constraint (at_least) may "
                "learn from: leave one of them out"
            )
    for i, reward in enumerate(rewards):
        is_constraint, limits = reward.at_least is not None, reward.lagrange
        if is_constraint and reward.weight != 1.0:
            yield (
                f"rewards.{i}.weight: with at_least, {reward.known_as} is weighed by its multiplier: leave the weight "
                "out"
            )
        if is_constraint and reward.gate is not None:
            yield (
                f"rewards.{i}.gate: {reward.known_as} has at_least, which holds its mean up, and a gate, which "
                "shuts out single answers: choose one"
            )
        if not is_constraint and limits != LagrangeConfig():
            yield (
                f"rewards.{i}.lagrange: it moves the multiplier of a constraint, and {reward.known_as} has no at_least"
            )
        if limits.start > limits.max:
            yield f"rewards.{i}.lagrange.start: {limits.start:g} is above lagrange.max, {limits.max:g}"


def data_errors(config: TrainConfig, capabilities: Collection[str] | None = None) -> Iterator[str]:
    """Yield one message for each problem; with the policy's `capabilities`, also for data that it cannot learn from."""
    data, algorithm = config.data, config.algorithm
    if capabilities is not None and "teacher_force" not in capabilities:
        for key, part in (("replay", data.replay), ("demonstrations", data.demonstrations)):
            if part is not None:
                yield (
                    f"data.{key}: the policy cannot read what it did not just sample (capability teacher_force), as "
                    "policies that write texts can: leave it out"
                )
    if data.starts is not None:
        if capabilities is not None and "row_starts" not in capabilities:
            yield (
                "data.starts: the rows of this policy cannot start differently (capability row_starts), as those of "
                "policies that write texts can: leave it out"
            )
        yield from data.starts.errors(config)
    yield from controller_errors(config, capabilities)
    if isinstance(data.prompts, GrowingPromptsConfig):
        yield from data.prompts.errors()
    yield from _group_sampling_errors(config)
    if data.token_budget is not None:
        yield from _token_budget_errors(config)
    if algorithm.experience == "rollouts":
        yield from _advantage_scale_errors(config)
        return
    for key, is_set in (
        ("group_sampling", not isinstance(data.group_sampling, FixedGroupSamplingConfig)),
        ("prompts", not isinstance(data.prompts, ShuffledPromptsConfig)),
        ("replay", data.replay is not None),
        ("weighting", data.weighting is not None),
        ("demonstrations", data.demonstrations is not None),
        ("starts", data.starts is not None),
        ("turn_filter", data.turn_filter is not None),
        ("token_budget", data.token_budget is not None),
    ):
        if is_set:
            yield (
                f"data.{key}: {algorithm.name} learns from {algorithm.experience} in the data set and samples no "
                "answers: leave it out"
            )


def _advantage_scale_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting that scales advantages, if the algorithm does not learn from any."""
    data, algorithm = config.data, config.algorithm
    if algorithm.reads_advantages:
        return
    shaped = data.demonstrations is not None and data.demonstrations.shaping is not None
    for key, is_set in (("weighting", data.weighting is not None), ("demonstrations.shaping", shaped)):
        if is_set:
            yield (
                f"data.{key}: it scales the advantages of answers relative to their group, from which "
                f"{algorithm.name} does not learn: leave it out, or choose grpo"
            )


def _token_budget_errors(config: TrainConfig) -> Iterator[str]:
    data, key = config.data, "data.token_budget"
    aggregate = getattr(config.algorithm, "aggregate", "token")
    if not isinstance(config.sampling, TokenSamplingConfig):
        yield f"{key}: only answers in text differ in their number of tokens: leave it out"
    if aggregate != "token":
        yield (
            f"{key}: an equal number of tokens is for a mean over tokens, and algorithm.aggregate is {aggregate}: set "
            "it to token"
        )
    if config.training.updates != 1:
        yield f"{key}: it is that of an iteration, which training.updates divides unevenly: set that to 1"
    if data.replay is not None:
        yield f"{key}: data.replay adds or leaves out answers by another rule: leave one of the two out"
    if config.run.overlap.stream:
        yield f"{key}: run.overlap.stream learns from groups one by one, before all lengths are known: leave one out"


def _group_sampling_errors(config: TrainConfig) -> Iterator[str]:
    data = config.data
    sampling, replay = data.group_sampling, data.replay
    if isinstance(sampling, DynamicGroupSamplingConfig) and isinstance(replay, SuccessReplayConfig):
        yield (
            "data.replay: success mends groups that failed as a whole, which data.group_sampling dynamic drops before: "
            "choose one of them, or the replay selective"
        )
    if isinstance(data.prompts, ValuedPromptsConfig) and not isinstance(sampling, DynamicGroupSamplingConfig):
        yield (
            f"data.prompts: valued chooses what takes the places of groups without a signal, and data.group_sampling "
            f"{sampling.name} replaces none: choose dynamic, or the prompts variance_aware"
        )
    if isinstance(replay, SelectiveReplayConfig) and replay.capacity < data.group_size:
        yield (
            f"data.replay.capacity: {replay.capacity} answers do not fill the places of a single group of "
            f"{data.group_size}"
        )
    if isinstance(sampling, AdaptiveGroupSamplingConfig):
        half = data.group_size // 2
        wanted = (half if sampling.positives is None else sampling.positives) + (
            half if sampling.negatives is None else sampling.negatives
        )
        most = sampling.max_rounds * (sampling.per_round or data.group_size)
        if wanted > most:
            yield (
                f"data.group_sampling: {sampling.max_rounds} rounds sample at most {most} answers of a prompt, fewer "
                f"than the {wanted} good and bad ones that are waited for"
            )


def environment_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting that cannot work with episodes of several turns, or only with them."""
    advantage = getattr(config.algorithm, "advantage", None)
    turns = isinstance(advantage, AdvantageConfig) and advantage.turns is not None
    kl = getattr(config.algorithm, "kl", None)
    if isinstance(kl, KLConfig) and kl.turns is not None and (config.environment is None or not kl.coef):
        yield "algorithm.kl.turns: only a penalty (coef) on the turns of an environment has them: leave it out"
    if config.environment is None:
        if turns:
            yield "algorithm.advantage.turns: only an environment has turns: set environment, or leave it out"
        if isinstance(config.data.group_sampling, TimedGroupSamplingConfig):
            yield "data.group_sampling: timed needs the durations of an environment: set environment, or choose fixed"
        if config.data.turn_filter is not None:
            yield "data.turn_filter: only an environment has turns: set environment, or leave it out"
        return
    if not isinstance(config.policy, VLMConfig):
        yield f"environment: policies of kind {config.policy.kind} write no turns: leave it out"
    if config.data.demonstrations is not None:
        yield (
            "data.demonstrations: its texts are single answers, and the environment asks for several turns: leave one "
            "of the two out"
        )
    replay = config.data.replay
    if turns and isinstance(replay, SelectiveReplayConfig | RecomposedReplayConfig):
        yield (
            f"data.replay: {replay.name} keeps one advantage of each episode, and algorithm.advantage.turns has one of "
            "each turn: choose the replay success, or leave turns out"
        )
    if isinstance(config.algorithm, OnlineDPOConfig):
        yield (
            f"algorithm: {config.algorithm.name} puts the rows of an iteration into new micro-batches, which rows of "
            "several turns cannot be: choose grpo, or leave the environment out"
        )
    if config.run.place == "strict":
        yield (
            "run.place: strict needs equally many calls of the model in every process, which episodes of several turns "
            "do not make: choose another place, or leave the environment out"
        )
