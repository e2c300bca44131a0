"""What an exported model's card says against it: only what the run's own files show, and what no run can show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mmrl.assemble.lineup import Subject
from mmrl.assemble.plain_folders import Plain
from mmrl.config.sampling import SamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.evaluation.cautions import Inner
from mmrl.evaluation.records import HELDOUT, RunRecord
from mmrl.evaluation.summary import RunSummary, interval_text

FEWER = 0.9
"""Below this share of the base's diversity, a card says that it fell."""


def limits(
    config: TrainConfig,
    record: RunRecord,
    summary: RunSummary | None,
    inner: Sequence[Inner],
    subject: Subject,
    plain: Plain,
) -> list[str]:
    """Sentences."""
    return [
        "It was optimised for the rewards above, by programs and not by people. What they do not measure may have got "
        "worse.",
        f"This is one run with one seed ({config.seed}): another may end elsewhere.",
        *_of_evaluation(record, summary, inner, subject),
        *_of_sampling(config),
        *plain.notes,
        "Faults and biases of the base model are still there.",
    ]


def _of_evaluation(
    record: RunRecord, summary: RunSummary | None, inner: Sequence[Inner], subject: Subject
) -> Iterator[str]:
    if summary is None:
        yield "Nothing here says whether it is better than its base: it was not evaluated beside it."
        return
    if summary.steps[1] != subject.step:
        yield (f"The results are those of iteration {summary.steps[1]}; what is exported is iteration {subject.step}, "
               "which was not evaluated.")  # fmt: skip
    headline = summary.changes[summary.headline].difference
    if headline.verdict != "up":
        said = "ended below its base's" if headline.verdict == "down" else "is not surely above its base's"
        yield f"Training did not show what it was for: {summary.headline} {said} ({interval_text(headline)})."
    if not record.watched:
        yield "No reward was held out: gaming of the trained ones would not show in the results."
    if not any(kind.folder == HELDOUT and found for kind, _, found in inner):
        yield "It was not evaluated on prompts of a kind that training never saw."
    ratio = summary.diversity_ratio
    if math.isfinite(ratio) and ratio < FEWER:
        yield f"What it makes of one prompt is more alike than the base's was: diversity × {ratio:.2f}."
    fallen = summary.sources_with("down")
    if fallen:
        yield f"{summary.headline} is lower than the base's on {', '.join(fallen)}."


def _of_sampling(config: TrainConfig) -> Iterator[str]:
    sampling = config.sampling
    if isinstance(sampling, SamplingConfig):
        if sampling.transition.learned is not None:
            yield ("Its noise levels were trained too (sampling.transition.learned). They serve exploration alone, a "
                   "plain pipeline has no place for them, and they are not here.")  # fmt: skip
        if sampling.transition.name != "ode":
            yield (f"It was trained on paths with noise ({sampling.transition.name}), and evaluated, as the code above "
                   "draws, by the pipeline's own scheduler.")  # fmt: skip
    if config.answers.thinking != "off":
        yield (f"It was trained to reason first (answers.thinking: {config.answers.thinking}), and asked to in words, "
               "as in the code above.")  # fmt: skip
