"""`Study`: a published claim, the arms that test it, and the rule that decides, from a YAML file.

    paper: {key: gdpo, title: "GDPO", arxiv: "2601.05242"}
    claim: {text: "normalising each reward before adding keeps both", test: with > without}
    recipe: quickstart
    common: {rewards: [{name: shapeworld}, {name: shapeworld_clip}]}
    arms:
      with: {algorithm.advantage: {name: gdpo, ddof: 1}}
      without: {}
    decide: {metric: shapeworld_strict}
    budget: {rows: 4992}
    seeds: {first: 3, most: 6, stop: sequential}

An arm is a patch on the recipe: values by dotted key. Keys that begin with `inference.` (rlg, lora_strength,
guide.REWARD, sampling.KEY) change nothing in training; such arms share one trained run. The arm `base` is every run
before its training and need not be declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from mmrl.config.loading.section_file import check_map, find_file, read_map
from mmrl.config.recipes import STUDIES, recipes_folder
from mmrl.config.section import Section
from mmrl.studies.claims import BASE, Comparison, parse_claim


class PaperConfig(Section):
    """The publication whose claim is tested; a title alone for a study of the suite's own."""

    key: str | None = None
    """The system's short name, which is unique: see docs/systems.md. Unset: the claims are this suite's own."""
    title: str
    arxiv: str | None = None
    """Such as "2601.05242"."""


class DecideConfig(Section):
    """The numbers that are compared."""

    metric: str = "total"
    """A reward of the evaluation, one of its further scores, or `tokens`, the length of answers. Of `training`: a
    metric of the iterations, such as zero_variance_share."""
    on: Literal["validation", "heldout", "greedy", "training", "call"] = "validation"
    """The samples: an evaluation of the run, or its training iterations. `call`: what the function of an `experiment`
    returned."""
    at: Literal["last", "mean"] = "last"
    """The last evaluation, or the mean over all that were made after training began: the area under the curve."""
    sources: tuple[str, ...] = ()
    """Only samples from these sources; empty: all."""
    draws: Literal["mean", "best", "hypervolume"] = "mean"
    """Several answers to a sample (`evaluation.samples`) count as their mean, or as the best of them: pass@k.
    `hypervolume`: the area above (0, 0) that they dominate in the plane of `metric` and `beside`: how good a Pareto
    front of two rewards they are."""
    beside: str | None = None
    """`hypervolume`: the other metric."""
    of: PositiveInt | None = None
    """`best`: the number of answers k of which the best counts, at most `evaluation.samples`, as the mean over all
    choices of k of them, which is the unbiased estimate of pass@k (arXiv:2107.03374). Unset: all."""
    statistic: Literal["mean", "correlation", "auc", "spike"] = "mean"
    """For studies that score stored answers: Spearman's correlation with the oracle, or the probability that a right
    answer is scored above a wrong one. `spike`, of training iterations: the largest value over the median."""

    @model_validator(mode="after")
    def _best_of_drawn_answers(self) -> DecideConfig:
        if self.draws != "mean" and self.on in ("greedy", "training", "call"):
            raise ValueError(f"draws: {self.draws} is of the answers that an evaluation draws, and `on` is {self.on}")
        if (self.beside is None) == (self.draws == "hypervolume"):
            raise ValueError(
                f"beside: {self.beside} with draws: {self.draws}, but hypervolume, and it alone, has two metrics"
            )
        if self.of is not None and self.draws != "best":
            raise ValueError(f"of: {self.of} is the number of answers of which the best counts: write draws: best")
        return self

    @model_validator(mode="after")
    def _spikes_of_iterations(self) -> DecideConfig:
        if self.statistic == "spike" and self.on != "training":
            raise ValueError(
                f"statistic: spike is of the iterations of training, and `on` is {self.on}: write training"
            )
        return self


class ClaimConfig(Section):
    """A statement about the arms, in words and as a comparison."""

    text: str
    test: str
    """`with > without`, a chain `both > one > base`, `a = b within 0.02`, or `increasing in NAME` of the sweep."""
    decide: DecideConfig | None = None
    """Unset: as the study decides."""


class BudgetConfig(Section):
    """The amount that every arm gets; exactly one is set, and training ends when it is used up."""

    rows: PositiveInt | None = None
    """Trajectories that are sampled and learnt from: each is scored once, so these are reward calls too."""
    tokens: PositiveInt | None = None
    """Tokens of the answers that are learnt from. `training.iterations` is then the most, and must suffice."""
    iterations: PositiveInt | None = None
    cpu_seconds: PositiveFloat | None = None
    """CPU time of training; the cost of an iteration is measured by a short run of the arm first."""

    @model_validator(mode="after")
    def _exactly_one(self) -> BudgetConfig:
        if len(self.stated()) != 1:
            raise ValueError("exactly one of rows, tokens, iterations and cpu_seconds")
        return self

    def stated(self) -> dict[str, float]:
        """Return the amount by its unit."""
        return {unit: amount for unit, amount in self.model_dump().items() if amount is not None}


class SeedsConfig(Section):
    """The seeds, and the rule that stops."""

    start: NonNegativeInt = 0
    """The first of the consecutive seeds. A study that is repeated takes seeds that its earlier runs did not have."""
    first: PositiveInt = 3
    """Seeds of every arm before the first look; with `fixed`, all there are."""
    most: PositiveInt | None = None
    """Seeds after which a sequential study ends undecided."""
    stop: Literal["fixed", "sequential"] = "fixed"
    """`fixed`: one look, by the interval for prompts and seeds. `sequential`: a look after every seed, by the
    anytime-valid interval, until all claims are decided. See `mmrl.statistics.crossed`."""

    @model_validator(mode="after")
    def _most_is_for_sequences(self) -> SeedsConfig:
        if (self.stop == "sequential") != (self.most is not None):
            raise ValueError("`most` goes with `stop: sequential`, and is required there")
        if self.most is not None and self.most < max(self.first, 3):
            raise ValueError("`most` is at least `first`, and at least 3: fewer seeds decide nothing")
        return self


class SweepConfig(Section):
    """Arms that differ in one key."""

    name: str
    """The arms are called NAME=VALUE."""
    key: str
    values: Annotated[tuple[Any, ...], Field(min_length=2)]


class ScoreConfig(Section):
    """Stored answers that are scored, in studies of rewards that train nothing. Each arm has a `reward`."""

    answers: str
    """`package.module:function` or `path/to/file.py:function`: a function from a seed to `LabelledAnswers`."""


class ExperimentConfig(Section):
    """A function that is called for each arm, in studies of speed, memory or exactness that train nothing."""

    function: str
    """`package.module:function` or `path/to/file.py:function`: it takes a seed and the arguments of an arm, and returns
    {metric: values}."""


class StudyConfig(Section):
    """The file of a study."""

    paper: PaperConfig
    claims: Annotated[tuple[ClaimConfig, ...], Field(min_length=1)]
    """The first is the paper's; `claim: {...}` stands for a list of one."""
    recipe: str | None = None
    """The recipe that all arms patch; unset in studies that train nothing, which have `score` or `experiment`."""
    score: ScoreConfig | None = None
    experiment: ExperimentConfig | None = None
    common: Mapping[str, Any] = {}
    """A patch of every arm, laid on first."""
    arms: Mapping[str, Mapping[str, Any]] = {}
    sweep: SweepConfig | None = None
    decide: DecideConfig = DecideConfig()
    also: tuple[DecideConfig, ...] = ()
    """Further numbers that are reported and decide nothing."""
    budget: BudgetConfig | None = None
    """Unset: every arm trains as many iterations as its recipe says."""
    seeds: SeedsConfig = SeedsConfig()
    tried: tuple[str, ...] = ()
    """The settings that were tried before this file was fixed, on development samples, and what each gave."""

    @model_validator(mode="after")
    def _one_kind(self) -> StudyConfig:
        if sum(each is not None for each in (self.recipe, self.score, self.experiment)) != 1:
            raise ValueError(
                "a study has a recipe to train, stored answers to score, or a function to call: exactly one of "
                "`recipe`, `score` and `experiment`"
            )
        decides = [self.decide, *self.also, *(claim.decide for claim in self.claims if claim.decide is not None)]
        if any((each.on == "call") != (self.experiment is not None) for each in decides):
            raise ValueError("what decides is `on: call` in a study with `experiment`, and in no other")
        if not self.arms and self.sweep is None:
            raise ValueError("a study needs `arms` or a `sweep`")
        if BASE in self.arms:
            raise ValueError(f"`{BASE}` is every run before training; choose another name")
        return self


@dataclass(frozen=True)
class Study:
    """A study by name, with its claims parsed and its sweep written out as arms."""

    name: str
    path: Path
    config: StudyConfig
    arms: Mapping[str, Mapping[str, Any]]
    comparisons: tuple[Comparison, ...] = field(default=())
    """The comparisons of the claims, in order."""

    @property
    def decides(self) -> tuple[DecideConfig, ...]:
        """The numbers that decide each claim, in order."""
        return tuple(claim.decide or self.config.decide for claim in self.config.claims)

    @property
    def max_seeds(self) -> int:
        """The most seeds that are trained of an arm."""
        return self.config.seeds.most or self.config.seeds.first


def studies_folder() -> Path:
    """Return the folder of the shipped studies."""
    return recipes_folder() / STUDIES


def list_studies() -> list[Study]:
    """Return the shipped studies, sorted by name."""
    return [load_study(str(path)) for path in sorted(studies_folder().glob("*.yaml"))]


def load_study(name_or_path: str) -> Study:
    """Return a shipped study by name, or one of your own by the path of its YAML file.

    Raises:
        ConfigError: there is no such study, or its file has unknown keys, wrong values, or claims about arms that it
            does not have; each on its own line.
    """
    path = find_file(name_or_path, studies_folder(), "study")
    document, lines = read_map(path, StudyConfig)
    if "claim" in document and "claims" not in document:
        document["claims"] = [document.pop("claim")]
    return study_of(check_map(StudyConfig, document, lines, path), path.stem, path)


def study_of(config: StudyConfig, name: str, path: Path) -> Study:
    """Return the study of a checked configuration.

    Raises:
        ConfigError: a claim is about an arm that the study does not have.
    """
    arms = dict(config.arms)
    swept: dict[str, tuple[str, ...]] = {}
    if (sweep := config.sweep) is not None:
        named = {f"{sweep.name}={value}": {sweep.key: value} for value in sweep.values}
        swept[sweep.name] = tuple(named)
        arms |= named
    comparisons = tuple(parse_claim(claim.test, tuple(arms), swept, str(path)) for claim in config.claims)
    return Study(name, path, config, arms, comparisons)
