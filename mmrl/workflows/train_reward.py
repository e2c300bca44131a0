"""`mmrl train reward RECIPE`: train a reward model, measure it on further samples, and write its folder and card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.build.datasets import load_samples
from mmrl.build.schemes import provided_model
from mmrl.config.loading.overrides import apply_override, parse_override
from mmrl.config.loading.section_file import check_map, find_file, read_map
from mmrl.config.recipes import REWARD_MODELS, recipes_folder
from mmrl.config.reward_model import RewardModelConfig
from mmrl.data.media.decode import load_image
from mmrl.data.media.sample_media import answer_image
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.learned.error_bound import inverse_precision
from mmrl.rewards.learned.goal_training import JudgedCourses, train_goal_head
from mmrl.rewards.learned.head_training import (
    JudgedPairs,
    RatedAnswers,
    axis_logits,
    context_of,
    rows_of_raters,
    train_pair_head,
    train_rater_head,
    train_score_head,
    vote_on_labels,
)
from mmrl.rewards.learned.judge_inputs import Facts, JudgeInputs, query_features
from mmrl.rewards.learned.learned_latents import load_latent_encoder
from mmrl.rewards.learned.pair_features import text_features
from mmrl.rewards.learned.ranked_factors import factor_margins, factors_of, ranked_sides
from mmrl.rewards.learned.reward_folder import RewardModelSettings, RewardQuality, card_text, write_reward_folder
from mmrl.rewards.learned.score_head import HeadShape, RaterEncoder, ScoreHead
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl.rewards.models.text_encoder import TextEncoder
from mmrl.seeds import fold_in
from mmrl.statistics.calibration import expected_calibration_error
from mmrl.workflows.latent_answers import LatentAnswers, check_latent_recipe, latent_answers

Log = Callable[[str], None]
AnswerFeatures = Callable[[Sequence[Any], Sequence[Sample]], Tensor]
"""From N answers (paths of pictures, or texts) and their samples to features [N, F]."""
ENCODER_KINDS = {"clip": "clip", "text": "vlm", "latents": "pipeline"}
"""The kind of model that a package provides, by `encoder.name`."""
SIDES = {"chosen": 1.0, "rejected": -1.0, "equal": 0.0}
"""The values of `metadata.axes` of a pair."""


@dataclass(frozen=True)
class TrainedReward:
    """A reward model that was trained and measured."""

    folder: Path
    quality: RewardQuality


@dataclass(frozen=True)
class _Members:
    """The heads of an ensemble, and the encoders of raters beside them."""

    heads: list[ScoreHead]
    encoders: list[RaterEncoder]


def load_reward_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> RewardModelConfig:
    """Return the recipe of a reward model, with `a.b=c` overrides laid over it.

    Raises:
        ConfigError: there is no such recipe, or it has an unknown key or a wrong value; with file and line.
    """
    path = find_file(name_or_path, recipes_folder() / REWARD_MODELS, "recipe of a reward model")
    document, lines = read_map(path, RewardModelConfig)
    overridden = []
    for override in overrides:
        key, value = parse_override(override)
        overridden.append(key)
        document = apply_override(document, key, value, RewardModelConfig)
    return check_map(RewardModelConfig, document, lines, path, overridden)


def train_reward(config: RewardModelConfig, folder: Path, log: Log = lambda line: None) -> TrainedReward:
    """Train the ensemble that a recipe names, measure it, and write it into `folder`.

    Raises:
        ConfigError: the folder holds a reward model already, or the recipe does not fit its data.
        DataError: a sample has not what the recipe needs.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: delete it, or set out to another folder")
    is_text, is_latent = config.encoder.name == "text", config.encoder.name == "latents"
    kind = ENCODER_KINDS[config.encoder.name]
    encoder_folder = provided_model(config.encoder.model, kind) or config.encoder.model
    if is_text and config.head.kind == "pointwise":
        raise ConfigError("head.kind pointwise is for pictures; with encoder.name text choose bradley_terry")
    if is_latent:
        check_latent_recipe(config)
    train, validation = (
        samples if is_text else _with_pictures_of(path, samples)
        for path, samples in ((path, load_samples(path)) for path in (config.data.path, config.data.validation))
    )
    names = sorted({str(each.rater) for each in train}) if config.raters else []
    pointwise = config.head.kind == "pointwise"
    if config.factors and (pointwise or len(config.axes) > 1):
        raise ConfigError(
            "factors decide one axis of pairs: leave axes out, and set head.kind to another than pointwise"
        )
    if config.goals is not None and (pointwise or config.raters or config.factors or is_text or len(config.axes) > 1):
        raise ConfigError("goals are of pairs of pictures with one axis: leave raters, factors, axes and labels out")
    log(f"reading {len(train)} + {len(validation)} samples")
    data: JudgedPairs | RatedAnswers
    unseen: JudgedPairs | RatedAnswers
    latent = _latent_answers(config, encoder_folder, train, validation) if is_latent else None
    if latent is not None:
        data, unseen = latent.data, latent.all_unseen()
    elif pointwise:
        features = _answer_features(config, encoder_folder)
        data, unseen = (_rated_answers(config, samples, features) for samples in (train, validation))
    else:
        features = _answer_features(config, encoder_folder)
        margins = None
        if config.factors:
            margins = factor_margins(torch.cat(factors_of(train, config.factors)), [f.margin for f in config.factors])
        data, unseen = (_judged_pairs(config, samples, features, margins) for samples in (train, validation))
    for split, known in ((config.data.path, data), (config.data.validation, unseen)):
        _check_axes(config, split, known)
    shape = HeadShape(
        features=data.features.shape[1] if isinstance(data, RatedAnswers) else data.chosen.shape[1],
        axes=len(config.axes),
        hidden=config.head.hidden,
        gaussian=config.head.kind == "gaussian",
        latent=config.raters.latent if config.raters else 0,
        dropout=config.head.dropout,
    )
    notes: dict[str, float] = {}
    if config.goals is not None:
        courses = _courses(data, train, features)
        seeds = [fold_in(config.seed, member) for member in range(config.ensemble)]
        goal_heads = [train_goal_head(courses, shape, config.training, config.goals, seed) for seed in seeds]
        members = _Members(goal_heads, [])
    else:
        notes, members = _train(config, data, shape, log)
    with torch.no_grad():
        latents = _known_latents(config, data, members.encoders)
        mean, spread = _scale(members.heads, data, latents)
        inverses = None if config.bound is None else _inverses(config.bound.ridge, members.heads, data, latents)
        if latent is not None:
            notes |= _by_level(config, members, latent)
        quality = _measure(config, members, unseen, notes)
    settings = RewardModelSettings(
        encoder=encoder_folder,
        revision=config.encoder.revision,
        shape=shape,
        axes=config.axes,
        members=len(members.heads),
        mean=tuple(mean.tolist()),
        spread=tuple(spread.tolist()),
        raters=tuple(names),
        kind=config.encoder.name,
        against=config.encoder.against,
        layers=config.encoder.layers,
        noise=(config.encoder.noise.low, config.encoder.noise.high) if is_latent else (0.0, 0.0),
        sampling=config.encoder.sampling,
        prompt=config.encoder.prompt,
        region=config.encoder.region,
        query=config.encoder.query,
    )
    card = card_text(config, len(train), quality)
    others = None if latent is None else latent.scale.tensors()
    write_reward_folder(folder, settings, members.heads, latents, card, inverses, others)
    return TrainedReward(folder, quality)


def _check_axes(config: RewardModelConfig, split: str, known: JudgedPairs | RatedAnswers) -> None:
    """Raise DataError if an axis cannot be learnt from samples, or not be measured on them."""
    if isinstance(known, RatedAnswers):
        stated, what = known.scores.isfinite().any(0), "has a score"
    else:
        pairs = known
        if config.raters is not None and known.raters is not None:  # the first pairs of a rater tell who rates
            pairs = known.select(torch.cat([rows[config.raters.context :] for rows in rows_of_raters(known.raters)]))
        stated, what = (pairs.sides != 0).any(0), "has a better answer"
    if unknown := [axis for axis, there in zip(config.axes, stated.tolist(), strict=True) if not there]:
        raise DataError(f"{split}: no sample {what} on the axis {unknown[0]!r} of axes: is that its name in the data?")


def _latent_answers(
    config: RewardModelConfig, model: str, train: Sequence[Sample], validation: Sequence[Sample]
) -> LatentAnswers:
    encoder = config.encoder
    generator = load_latent_encoder(model, encoder.layers, encoder.sampling, encoder.revision, "auto")
    target = _score if config.head.kind == "pointwise" else _side
    targets = [torch.tensor([[target(each, axis) for axis in config.axes] for each in samples])
               for samples in (train, validation)]  # fmt: skip
    return latent_answers(config, generator, train, validation, targets)


def _by_level(config: RewardModelConfig, members: _Members, latent: LatentAnswers) -> dict[str, float]:
    """Return the accuracy of each axis on pairs at each noise level, for the card."""
    if len(latent.unseen) < 2 or isinstance(latent.data, RatedAnswers):
        return {}
    return {
        f"right on {axis} at noise {sigma:g}": right
        for sigma, unseen in latent.unseen.items()
        for axis, right in _measure(config, members, unseen, {}).accuracy.items()
    }


def _train(
    config: RewardModelConfig, data: JudgedPairs | RatedAnswers, shape: HeadShape, log: Log
) -> tuple[dict[str, float], _Members]:
    seeds = [fold_in(config.seed, member) for member in range(config.ensemble)]
    notes: dict[str, float] = {}
    if isinstance(data, RatedAnswers):
        return notes, _Members([train_score_head(data, shape, config.training, seed) for seed in seeds], [])
    if config.raters is not None:
        trained = [train_rater_head(data, shape, config.training, config.raters, seed) for seed in seeds]
        return notes, _Members([head for head, _ in trained], [encoder for _, encoder in trained])
    labels = None
    if config.labels.vote is not None:
        labels, _ = vote_on_labels(data, shape, config.training, config.labels, config.seed)
        softened = (labels.smoothing > 0) & (labels.smoothing < 1)
        notes = {
            "flipped labels": float((labels.smoothing == 1).float().mean()),
            "softened labels": float(softened.float().mean()),
            "pairs left out": float((~labels.kept).float().mean()),
        }
        log(", ".join(f"{name}: {share:.1%}" for name, share in notes.items()))
    smoothing = config.labels.smoothing
    heads = [train_pair_head(data, shape, config.training, seed, labels, smoothing) for seed in seeds]
    return notes, _Members(heads, [])


def _measure(
    config: RewardModelConfig, members: _Members, unseen: JudgedPairs | RatedAnswers, notes: Mapping[str, float]
) -> RewardQuality:
    if isinstance(unseen, RatedAnswers):
        scores = torch.stack([head(unseen.features)[0] for head in members.heads]).mean(0)
        return RewardQuality(rank_correlation=_correlations(scores, unseen.scores), notes=notes)
    if config.raters is not None:
        logits, unseen = _logits_of_raters(members, unseen, config.raters.context)
    else:
        logits = torch.stack([axis_logits(head, unseen) for head in members.heads])
    probability = logits.sigmoid().mean(0)  # [P, A]
    accuracy, calibration, by_gap = {}, {}, {}
    for axis, name in enumerate(config.axes):
        decided = unseen.sides[:, axis] != 0
        chance, right = probability[decided, axis], unseen.sides[decided, axis] > 0
        accuracy[name] = ((chance > 0.5) == right).float().mean().item()
        certainty = chance.maximum(1 - chance)
        calibration[name] = expected_calibration_error(certainty.double().numpy(), ((chance > 0.5) == right).numpy())
        thirds = (chance - 0.5).abs().argsort().tensor_split(3)
        by_gap[name] = [((chance[rows] > 0.5) == right[rows]).float().mean().item() for rows in thirds if len(rows)]
    return RewardQuality(accuracy=accuracy, calibration=calibration, by_gap=by_gap, notes=notes)


def _logits_of_raters(members: _Members, unseen: JudgedPairs, context: int) -> tuple[Tensor, JudgedPairs]:
    """Return [E, P, A] of pairs after the first `context` of their rater, which tell who rates, and those pairs."""
    assert unseen.raters is not None
    of_raters = rows_of_raters(unseen.raters)
    places = torch.stack([rows[:context] for rows in of_raters])
    rest = torch.cat([rows[context:] for rows in of_raters])
    number = torch.cat([torch.full((len(rows) - context,), n) for n, rows in enumerate(of_raters)])
    judged = unseen.select(rest)
    logits = [
        axis_logits(head, judged, encoder(*context_of(unseen, places))[0][number])
        for head, encoder in zip(members.heads, members.encoders, strict=True)
    ]
    return torch.stack(logits), judged


def _known_latents(
    config: RewardModelConfig, data: JudgedPairs | RatedAnswers, encoders: Sequence[RaterEncoder]
) -> Tensor | None:  # [E, R, L]
    if config.raters is None or isinstance(data, RatedAnswers) or data.raters is None:
        return None
    of_raters = rows_of_raters(data.raters)
    places = torch.stack([rows[: config.raters.context] for rows in of_raters])
    return torch.stack([encoder(*context_of(data, places))[0] for encoder in encoders])


def _scale(
    heads: Sequence[ScoreHead], data: JudgedPairs | RatedAnswers, latents: Tensor | None
) -> tuple[Tensor, Tensor]:  # [A] each
    """Return mean and standard deviation of the scores of all training answers."""
    scores = [head(*_all_answers(data, latents, member))[0] for member, head in enumerate(heads)]
    mean_scores = torch.stack(scores).mean(0)
    return mean_scores.mean(0), mean_scores.std(0).clamp(min=1e-6)


def _inverses(
    ridge: float, heads: Sequence[ScoreHead], data: JudgedPairs | RatedAnswers, latents: Tensor | None
) -> Tensor:  # [E, H, H]
    """Return the inverse precision of what the last layer of each head sees of all training answers."""
    seen = [head.represent(*_all_answers(data, latents, member)) for member, head in enumerate(heads)]
    return torch.stack([inverse_precision(each, ridge) for each in seen])


def _all_answers(
    data: JudgedPairs | RatedAnswers, latents: Tensor | None, member: int
) -> tuple[Tensor, Tensor | None]:  # [N, F] and [N, L]
    """Return the features of all training answers, and the latent vectors of their raters for a member."""
    if isinstance(data, RatedAnswers):
        return data.features, None
    latent = None if latents is None or data.raters is None else latents[member][data.raters.repeat(2)]
    return torch.cat([data.chosen, data.rejected]), latent


def _answer_features(config: RewardModelConfig, encoder_folder: str) -> AnswerFeatures:
    """Return a function from answers, one for each sample, to their features."""
    if config.encoder.name == "clip":
        clip = load_encoder("learned", encoder_folder, revision=config.encoder.revision)
        inputs = JudgeInputs.of(config.encoder)

        def of_pictures(answers: Sequence[Any], samples: Sequence[Sample]) -> Tensor:
            pictures = [_picture(path, sample) for path, sample in zip(answers, samples, strict=True)]
            return query_features(clip, pictures, [_single_query(inputs, each) for each in samples], inputs)

        return of_pictures
    encoder = TextEncoder(encoder_folder, config.encoder.revision)

    def of_texts(answers: Sequence[Any], samples: Sequence[Sample]) -> Tensor:
        if config.encoder.against == "prompt":
            return text_features(encoder, answers, [sample.prompt for sample in samples])
        for sample in samples:
            if sample.answer is None:
                raise DataError(f"sample {sample.id!r} has no answer, and encoder.against is answer: add a reference")
        return text_features(encoder, answers, [str(sample.answer) for sample in samples])

    return of_texts


def _single_query(inputs: JudgeInputs, sample: Sample) -> Facts:
    queries = inputs.queries(sample)
    if len(queries) > 1:
        keys = ", ".join(inputs.query)
        raise DataError(f"sample {sample.id!r} has one label and {len(queries)} queries by {keys}: give it one text "
                        "for each, and a line to each of the others")  # fmt: skip
    return queries[0]


def _with_pictures_of(path: str, samples: Sequence[Sample]) -> list[Sample]:
    """Return samples whose pairs are paths, relative ones from the folder of the data file, of {"image": path} too."""
    folder = Path(path).parent

    def placed(answer: Any) -> Any:
        answer = answer_image(answer) or answer
        if isinstance(answer, list | tuple):
            return [placed(each) for each in answer]
        if isinstance(answer, str) and not answer.startswith("data:") and (folder / answer).is_file():
            return str(folder / answer)
        return answer

    return [replace(each, chosen=placed(each.chosen), rejected=placed(each.rejected)) for each in samples]


def _judged_pairs(
    config: RewardModelConfig,
    samples: Sequence[Sample],
    features: AnswerFeatures,
    margins: Tensor | None,  # [K] of ranked factors
) -> JudgedPairs:
    for sample in samples:
        if not isinstance(sample.chosen, str) or not isinstance(sample.rejected, str):
            kind = "pictures" if config.encoder.name == "clip" else "texts"
            raise DataError(f"sample {sample.id!r}: head.kind {config.head.kind} needs {kind} in chosen and rejected")
        if config.raters is not None and sample.rater is None:
            raise DataError(f"sample {sample.id!r} names no rater: add one, or leave raters out")
    if margins is None:
        sides = torch.tensor([[_side(sample, axis) for axis in config.axes] for sample in samples])
    else:
        sides = ranked_sides(*factors_of(samples, config.factors), margins)[0].float()[:, None]
    raters = None
    if config.raters is not None:
        names = sorted({str(sample.rater) for sample in samples})
        counts = {name: sum(str(each.rater) == name for each in samples) for name in names}
        if few := [name for name, count in counts.items() if count <= config.raters.context]:
            raise DataError(f"rater {few[0]!r} has {counts[few[0]]} pairs, and raters.context alone takes "
                            f"{config.raters.context}: leave the rater out, or set it lower")  # fmt: skip
        raters = torch.tensor([names.index(str(sample.rater)) for sample in samples])
    return JudgedPairs(
        features([each.chosen for each in samples], samples),
        features([each.rejected for each in samples], samples),
        sides,
        raters,
    )


def _courses(data: JudgedPairs | RatedAnswers, samples: Sequence[Sample], features: AnswerFeatures) -> JudgedCourses:
    """Return the features of all states of pairs: the earlier ones of `metadata.states`, then the picture itself."""
    assert isinstance(data, JudgedPairs)
    sides = []
    for name, finished in (("chosen", data.chosen), ("rejected", data.rejected)):
        states = [_states(sample, name) for sample in samples]
        if len({len(each) for each in states}) > 1:
            raise DataError(f"metadata.states.{name} has {min(map(len, states))} to {max(map(len, states))} pictures; "
                            "expected as many for all samples")  # fmt: skip
        earlier = [features([each[place] for each in states], samples) for place in range(len(states[0]))]
        sides.append(torch.stack([*earlier, finished], dim=1))
    return JudgedCourses(*sides)


def _states(sample: Sample, name: str) -> list[str]:
    stated = sample.metadata.get("states")
    found = stated.get(name) if isinstance(stated, Mapping) else None
    if not isinstance(found, list | tuple) or not found or not all(isinstance(each, str) for each in found):
        raise DataError(f"sample {sample.id!r}: metadata.states.{name} is {found!r:.60}; goals need earlier pictures")
    return list(found)


def _rated_answers(config: RewardModelConfig, samples: Sequence[Sample], features: AnswerFeatures) -> RatedAnswers:
    for sample in samples:
        if len(sample.images) != 1:
            raise DataError(f"sample {sample.id!r}: head.kind pointwise needs one picture in images")
    found = features([sample.images[0] for sample in samples], samples)
    return RatedAnswers(found, torch.tensor([[_score(each, axis) for axis in config.axes] for each in samples]))


def _picture(path: Any, sample: Sample) -> Any:
    return load_image(path, sample.id)


def _side(sample: Sample, axis: str) -> float:
    stated = sample.metadata.get("axes")
    if stated is None:
        return 1.0
    side = stated.get(axis, "equal") if isinstance(stated, Mapping) else None
    if side not in SIDES:
        raise DataError(f"sample {sample.id!r}: metadata.axes.{axis} is {side!r}; it is one of {', '.join(SIDES)}")
    return SIDES[side]


def _score(sample: Sample, axis: str) -> float:
    value = sample.answer.get(axis, float("nan")) if isinstance(sample.answer, Mapping) else sample.answer
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"sample {sample.id!r}: answer is {value!r:.60}; expected a score, or a map from axis to score")
    return float(value)


def _correlations(scores: Tensor, truth: Tensor) -> list[float]:
    from scipy.stats import spearmanr

    found = []
    for axis in range(scores.shape[1]):
        rated = truth[:, axis].isfinite()
        found.append(float(spearmanr(scores[rated, axis].numpy(), truth[rated, axis].numpy()).statistic))
    return found
