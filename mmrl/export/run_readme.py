"""Write the README.md of a run: method, data, results before and after, and code that loads the model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.atomic_io import replace_text
from mmrl.build.policies import resolve_model_path
from mmrl.config.policy import AnyPolicyConfig, ImageTokenConfig, VLMConfig
from mmrl.config.train import TrainConfig
from mmrl.export.snippets import pipeline_lora_code, vlm_lora_code
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.training.run.run_folder import load_run

FULL = """from diffusers import DiffusionPipeline

pipe = DiffusionPipeline.from_pretrained("{model}")
for name in {denoisers}:
    folder = "{checkpoint}/" + name
    setattr(pipe, name, type(getattr(pipe, name)).from_pretrained(folder))"""
VLM_FULL = """from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("{checkpoint}")
processor = AutoProcessor.from_pretrained("{checkpoint}")"""
IMAGE_TOKENS = """from mmrl.workflows.generate_images import sample_images

pictures = sample_images("{run}", prompts=["..."], n=4, seed=0)"""
SETS = (("", "Results"), ("heldout_", "Results on held-out prompts"), ("greedy_", "Results, greedy"))
"""The prefix of each evaluation's metrics, and the title of its table."""


def write_run_readme(run: Path, config: TrainConfig) -> Path:
    """Write README.md into a run folder that has a checkpoint, and return its path."""
    rows = load_run(run).metrics("evaluation")
    results = "\n".join(part for prefix, title in SETS if (part := _results(rows, prefix, title)))
    text = f"""# {config.name}

Trained from `{config.policy.model}` with mmrl.

- Method: {method_text(config)}
- Rewards: {rewards_text(config, rows)}
- Data: {data_text(config)}
- Iterations: {_iterations(run, config)}

{results}
## Load it

```python
{_code(run, config.policy)}
```

The whole configuration is in `config.yaml`, the curves and examples are in `report.html`. `mmrl export` writes
the model to a folder that loads without mmrl.
"""
    return replace_text(run / "README.md", text, errors="backslashreplace")  # a source may hold a lone surrogate


def _code(run: Path, policy: AnyPolicyConfig) -> str:
    checkpoint = Checkpoints(run).path()
    if isinstance(policy, ImageTokenConfig):
        return IMAGE_TOKENS.format(run=run)
    if isinstance(policy, VLMConfig):
        if policy.train == "lora":
            return vlm_lora_code(resolve_model_path(policy).model, str(run), policy.revision)
        return VLM_FULL.format(checkpoint=checkpoint)
    model = resolve_model_path(policy).model
    if policy.train == "lora":
        return pipeline_lora_code(model, str(run), policy.revision)
    denoisers = sorted(p.name for p in checkpoint.iterdir() if p.is_dir() and p.name != "trainer")
    return FULL.format(model=model, checkpoint=checkpoint, denoisers=denoisers)


def _iterations(run: Path, config: TrainConfig) -> str:
    done, planned = load_run(run).step(), config.training.iterations
    return str(done) if done >= planned else f"{done} of {planned}, then its KL budget was spent"


def _results(rows: Sequence[Mapping[str, Any]], prefix: str, title: str) -> str:
    """Return a table of every reward and of each source's total, before and after; empty below two evaluations."""
    if len(rows) < 2:
        return ""
    table = ["| | before | after |", "|-|-|-|"]
    for kind, label in (("evaluation/", "{}"), ("evaluation_by_source/", "total on {}")):
        for name in rows[0]:
            if name.startswith(prefix + kind) and name in rows[-1]:
                cell = label.format(one_cell(name.removeprefix(prefix + kind)))
                table.append(f"| {cell} | {_number(rows[0][name])} | {_number(rows[-1][name])} |")
    return "\n".join([f"## {title}", "", *table, ""]) if len(table) > 2 else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


_PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def method_text(config: TrainConfig) -> str:
    """Return the algorithm, the trained part and the seed."""
    return f"{config.algorithm.name}, {config.policy.train} training, seed {config.seed}"


def paper_text(config: TrainConfig) -> str:
    """Return a sentence about the algorithm, with links to its papers."""
    summary = " ".join((inspect.getdoc(type(config.algorithm)) or "").partition("\n\n")[0].split())
    return _PAPER.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", summary)


def rewards_text(config: TrainConfig, evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return the rewards with their weights; without any, those of the samples in `evaluations`, a row for each."""
    if config.rewards:
        return ", ".join(
            f"{r.known_as} (weight {r.weight:g})" if r.at_least is None else f"{r.known_as} (at least {r.at_least:g})"
            for r in config.rewards
        )
    prefix = "evaluation/"
    scored = {name.removeprefix(prefix) for row in evaluations for name in row if name.startswith(prefix)}
    names = sorted(scored - {"total", "diversity", *config.evaluation.rewards})
    return f"each sample's own; scored: {', '.join(names)}" if names else "each sample's own"


def data_text(config: TrainConfig, path: str | None = None) -> str:
    """Return the data's path, or another text for it, and the number of samples in an iteration."""
    path = path or config.data.path
    if config.algorithm.experience != "rollouts":
        return f"`{path}`, {config.data.groups} samples an iteration"
    return f"`{path}`, {config.data.groups} prompts × {config.data.group_size} samples an iteration"


def one_cell(text: str) -> str:
    """Return a text on one line that stays inside a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
