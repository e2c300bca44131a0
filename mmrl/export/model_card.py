"""Write the README.md of an exported model: a model card for the Hugging Face Hub, from the files of the run.

The section "Limits" states what the run's files show against the model, and what no run can show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from mmrl.build.model_references import ModelRef
from mmrl.build.schemes import scheme_of
from mmrl.config.sampling import SamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.evaluation.final_summary import GRID, write_grid
from mmrl.evaluation.report.run_charts import curves_svg
from mmrl.evaluation.run_reader import HELDOUT, RunRecord
from mmrl.evaluation.run_warnings import SplitResult, displayed_changes, divergence_texts, read_splits, run_warnings
from mmrl.evaluation.summary import RunSummary, summarise_run, verdict_text
from mmrl.export.merged_model import ExportedModel
from mmrl.export.run_readme import data_text, method_text, one_cell, paper_text, rewards_text
from mmrl.export.scrub_paths import recipe_text, without_folders
from mmrl.statistics.intervals import interval_text

CARD, CURVES, RECIPE = "README.md", "curves.svg", "recipe.yaml"
PICTURES = 8
"""The number of prompts with pictures before and after."""
FAULTS = "Faults and biases of the base model are still there."
FEWER = 0.9
"""The share of the base's diversity below which a card reports a loss of diversity."""


def write_card(folder: Path, model: ModelRef, record: RunRecord, exported: ExportedModel, lora_only: bool) -> None:
    """Write README.md, the recipe, the curves, and pictures before and after if the run kept any.

    `record` is the run up to the exported step; `lora_only`: the folder holds an adapter alone.
    """
    run = model.run
    assert run is not None
    config = run.config
    summary = summarise_run(run.folder, until=model.step) if record.comparable else None
    inner = read_splits(run.folder, until=model.step)
    (folder / RECIPE).write_text(recipe_text(config), encoding="utf-8")
    if curves := curves_svg(record):
        (folder / CURVES).write_text(curves, encoding="utf-8")
    write_grid(run.folder, PICTURES, folder, until=model.step)
    parts = [
        _front_matter(config, exported, lora_only),
        f"# {config.name}",
        _opening(config, model, lora_only),
        _facts(config, record, model),
        _results(record, summary, inner),
        _pictures(folder),
        f"## Load it\n\n```python\n{exported.code}\n```\n\nNothing of mmrl is needed.",
        f"## Limits\n\n{_list([*limits(config, record, summary, inner, model), *exported.notes, FAULTS])}",
        "## Licence\n\nThe base model's licence applies, and this card adds none: "
        + (f"read it at [{config.policy.model}](https://huggingface.co/{config.policy.model})." if _on_hub(config)
           else "read it where the base model came from."),
    ]  # fmt: skip
    text = "\n\n".join(part for part in parts if part) + "\n"
    (folder / CARD).write_text(text, encoding="utf-8", errors="backslashreplace")  # a source may hold half a letter


def _front_matter(config: TrainConfig, exported: ExportedModel, lora_only: bool) -> str:
    """Return the card's metadata. A base that is not on the hub is left out: the hub rejects such names."""
    metadata: dict[str, Any] = {}
    if _on_hub(config):
        metadata |= {"base_model": config.policy.model, "base_model_relation": "adapter" if lora_only else "finetune"}
    if exported.library:
        metadata["library_name"] = exported.library
    if exported.task:
        metadata["pipeline_tag"] = exported.task
    metadata["tags"] = ["mmrl", "reinforcement-learning", config.algorithm.name, *(["lora"] if lora_only else [])]
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---"


def _opening(config: TrainConfig, model: ModelRef, lora_only: bool) -> str:
    content = "A LoRA for" if lora_only else "A model trained from"
    revision = f" at revision `{config.policy.revision}`" if config.policy.revision else ""
    if scheme_of(config.policy.model):
        base = f"`{config.policy.model}`, a model that an installed package provides"
    else:
        base = f"`{without_folders(config.policy.model)}`{revision}"
    return f"{content} {base}, by reinforcement learning from rewards, with mmrl: iteration {model.step} of the run."


def _facts(config: TrainConfig, record: RunRecord, model: ModelRef) -> str:
    rows = [row for row in record.metrics if row["kind"] == "evaluation"]
    lines = {
        "Method": method_text(config),
        "Algorithm": paper_text(config),
        "Rewards": rewards_text(config, rows),
        "Held out": ", ".join(record.heldout) or "no reward",
        "Data": data_text(config, without_folders(config.data.path)),
        "Iterations": f"{model.step}, of {config.training.iterations} that were planned",
        "Learning rate": f"{config.optimizer.lr:g}",
    }
    facts = "\n".join(f"- {label}: {text}" for label, text in lines.items())
    return f"## What was done\n\n{facts}\n\nAll settings are in [{RECIPE}]({RECIPE})."


def _results(record: RunRecord, summary: RunSummary | None, inner: list[SplitResult]) -> str:
    """Return tables with intervals, and whether trained and held-out rewards diverged."""
    if summary is None:
        return "## Results\n\nThis step was not compared with the base: there are no evaluations of both."
    note = f"The same prompts and noise at step 0 and at step {summary.steps[1]}; 95 % intervals of the difference."
    parts = [f"## Results\n\n{note}", _table(record, summary)]
    for kind, its, found in inner:
        if found:
            parts += [f"### {kind.title[0].upper()}{kind.title[1:]}\n\n{kind.note}", _table(its, found)]
    divergence = divergence_texts(record)
    no_divergence = "Trained and held-out rewards did not diverge, as far as these prompts show."
    if not record.heldout:
        no_divergence = "No reward was held out, so a gain by reward hacking would not show."
    parts.append(f"### Did the rewards diverge?\n\n{_list(divergence) or no_divergence}")
    if others := [text for text in run_warnings(record, summary, inner) if text not in divergence]:
        parts.append(f"### Cautions\n\n{_list(others)}")
    return "\n\n".join(parts)


def _list(texts: Sequence[str]) -> str:
    return "\n".join(f"- {one_cell(text)}" for text in texts)


def _table(record: RunRecord, summary: RunSummary) -> str:
    lines = ["| reward | | before | after | difference | 95 % interval | prompts |", "|-|-|-|-|-|-|-|"]
    for name, change in displayed_changes(record, summary.changes).items():
        moved = change.difference
        numbers = f"{change.before:.3f} | {change.after:.3f} | {moved.mean:+.3f} | {interval_text(moved)} | {moved.n}"
        lines.append(f"| {one_cell(name)} | {record.role(name)} | {numbers} |")
    if summary.tokens:
        lines.append("| length in tokens | | {:.1f} | {:.1f} | | | |".format(*summary.tokens))
    if summary.diversity:
        lines.append("| diversity | | {:.3f} | {:.3f} | | | |".format(*summary.diversity))
    return "\n".join(lines) + (f"\n\n{one_cell(verdict_text([summary]))}" if summary.sources else "")


def _pictures(folder: Path) -> str:
    captions = {CURVES: "rewards by iteration", GRID: "the same prompts and noise before and after"}
    return "\n\n".join(f"![{text}]({name})" for name, text in captions.items() if (folder / name).is_file())


def _on_hub(config: TrainConfig) -> bool:
    """Return whether the base's name has the form OWNER/NAME of the hub, and is not that of a local folder."""
    name = config.policy.model
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()


def limits(
    config: TrainConfig, record: RunRecord, summary: RunSummary | None, inner: Sequence[SplitResult], model: ModelRef
) -> list[str]:
    """Return the sentences of the section "Limits"."""
    return [
        "It was optimised for the rewards above, by programs and not by people. What they do not measure may have got "
        "worse.",
        f"This is one run with one seed ({config.seed}): another may end elsewhere.",
        *_limits_of_evaluation(record, summary, inner, model),
        *_limits_of_sampling(config),
    ]


def _limits_of_evaluation(
    record: RunRecord, summary: RunSummary | None, inner: Sequence[SplitResult], model: ModelRef
) -> Iterator[str]:
    if summary is None:
        yield "Nothing here says whether it is better than its base: it was not evaluated beside it."
        return
    if summary.steps[1] != model.step:
        yield (f"The results are those of iteration {summary.steps[1]}; what is exported is iteration {model.step}, "
               "which was not evaluated.")  # fmt: skip
    headline = summary.changes[summary.headline].difference
    if headline.verdict != "up":
        outcome = "ended below its base's" if headline.verdict == "down" else "is not surely above its base's"
        yield f"Training did not show what it was for: {summary.headline} {outcome} ({interval_text(headline)})."
    if not record.heldout:
        yield "No reward was held out: reward hacking would not show in the results."
    if not any(kind.folder == HELDOUT and found for kind, _, found in inner):
        yield "It was not evaluated on prompts of a kind that training never saw."
    ratio = summary.diversity_ratio
    if math.isfinite(ratio) and ratio < FEWER:
        yield f"What it makes of one prompt is more alike than the base's was: diversity × {ratio:.2f}."
    fallen = summary.sources_with("down")
    if fallen:
        yield f"{summary.headline} is lower than the base's on {', '.join(fallen)}."


def _limits_of_sampling(config: TrainConfig) -> Iterator[str]:
    sampling = config.sampling
    if isinstance(sampling, SamplingConfig):
        if sampling.transition.learned is not None:
            yield ("Its noise levels were trained too (sampling.transition.learned). They serve exploration alone, a "
                   "plain pipeline has no place for them, and they are not here.")  # fmt: skip
        if sampling.transition.name != "ode":
            yield (f"It was trained on paths with noise ({sampling.transition.name}), and evaluated, as the code above "
                   "draws, by the pipeline's own scheduler.")  # fmt: skip
    if config.answers.thinking != "off":
        yield (f"It was trained to reason first (answers.thinking: {config.answers.thinking}), and prompted to do so, "
               "as in the code above.")  # fmt: skip
