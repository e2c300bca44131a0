"""The README.md of a run: what was trained, on what, how to load it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
IMAGE_TOKENS = """from mmrl.workflows.sample import sample_images

pictures = sample_images("{run}", prompts=["..."], n=4, seed=0)"""
SETS = (("", "Results"), ("heldout_", "Results on held-out prompts"), ("greedy_", "Results, greedy"))
"""Prefixes of the evaluations, and what stands above each."""


def write_model_card(run: Path, config: TrainConfig) -> Path:
    """Write README.md into a run folder that has a checkpoint."""
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

The whole configuration is in `config.yaml`, the curves and examples are in `report.html`. `mmrl export` makes a folder
of it that loads without mmrl.
"""
    path = run / "README.md"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # a source may hold half a letter
    return path


def _code(run: Path, policy: AnyPolicyConfig) -> str:
    checkpoint = Checkpoints(run).path()
    if isinstance(policy, ImageTokenConfig):
        return IMAGE_TOKENS.format(run=run)
    if isinstance(policy, VLMConfig):
        model = (
            "<the folder that mmrl_shapeworld.vlm_model.VLM names>" if policy.model == "shapeworld" else policy.model
        )
        if policy.train == "lora":
            return vlm_lora_code(model, str(run), policy.revision)
        return VLM_FULL.format(checkpoint=checkpoint)
    model = "<the folder that mmrl_shapeworld.models.PIPELINE names>" if policy.model == "shapeworld" else policy.model
    if policy.train == "lora":
        return pipeline_lora_code(model, str(run), policy.revision)
    denoisers = sorted(p.name for p in checkpoint.iterdir() if p.is_dir() and p.name != "trainer")
    return FULL.format(model=model, checkpoint=checkpoint, denoisers=denoisers)


def _iterations(run: Path, config: TrainConfig) -> str:
    done, planned = load_run(run).step(), config.training.iterations
    return str(done) if done >= planned else f"{done} of {planned}, then its KL budget was spent"


def _results(rows: Sequence[Mapping[str, Any]], prefix: str, title: str) -> str:
    """Every reward, then the total of each source, before and after; nothing where it was not evaluated twice."""
    if len(rows) < 2:
        return ""
    table = ["| | before | after |", "|-|-|-|"]
    for kind, label in (("evaluation/", "{}"), ("evaluation_by_source/", "total on {}")):
        for name in rows[0]:
            if name.startswith(prefix + kind) and name in rows[-1]:
                cell = label.format(one_cell(name.removeprefix(prefix + kind)))
                table.append(f"| {cell} | {_shown(rows[0][name])} | {_shown(rows[-1][name])} |")
    return "\n".join([f"## {title}", "", *table, ""]) if len(table) > 2 else ""


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# What model cards say of a run in a line each: of a run folder's own card, and of an exported model's.


_PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def rewards_text(config: TrainConfig, rows: Sequence[Mapping[str, Any]]) -> str:
    """Those of the configuration; where it names none, what the samples asked for, as far as it was evaluated.

    `rows` are the lines of metrics of the evaluations.
    """
    if config.rewards:
        return ", ".join(
            f"{r.name} (weight {r.weight:g})" if r.at_least is None else f"{r.name} (at least {r.at_least:g})"
            for r in config.rewards
        )
    seen = {name.removeprefix("evaluation/") for row in rows for name in row if name.startswith("evaluation/")}
    names = sorted(seen - {"total", "diversity", *config.evaluation.rewards})
    return f"each sample's own; scored: {', '.join(names)}" if names else "each sample's own"


def data_text(config: TrainConfig) -> str:
    """Where the samples come from, and how many an iteration takes."""
    if config.algorithm.experience != "rollouts":
        return f"`{config.data.path}`, {config.data.groups} samples an iteration"
    return f"`{config.data.path}`, {config.data.groups} prompts × {config.data.group_size} samples an iteration"


def method_text(config: TrainConfig) -> str:
    """The algorithm, what was trained, and the seed."""
    return f"{config.algorithm.name}, {config.policy.train} training, seed {config.seed}"


def paper_text(config: TrainConfig) -> str:
    """What the algorithm is, in a sentence with links to its papers."""
    said = " ".join((inspect.getdoc(type(config.algorithm)) or "").partition("\n\n")[0].split())
    return _PAPER.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", said)


def one_cell(text: str) -> str:
    """A name of somebody's data on one line, and in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
