"""The README.md of a run: what was trained, on what, how to load it."""

from __future__ import annotations

from pathlib import Path

from mmrl.config.train import TrainConfig
from mmrl.training.checkpoints import Checkpoints
from mmrl.training.runs import load_run

LORA = """pipe = DiffusionPipeline.from_pretrained("{model}")
pipe.load_lora_weights("{run}")"""
FULL = """pipe = DiffusionPipeline.from_pretrained("{model}")
for name in {denoisers}:
    folder = "{checkpoint}/" + name
    setattr(pipe, name, type(getattr(pipe, name)).from_pretrained(folder))"""


def write_model_card(run: Path, config: TrainConfig) -> Path:
    """Write README.md into a run folder that has a checkpoint."""
    checkpoint = Checkpoints(run).path()
    model = config.policy.model
    if model == "shapeworld":
        model = "<the folder that mmrl.shapeworld.models.PIPELINE names>"
    denoisers = sorted(p.name for p in checkpoint.iterdir() if p.is_dir() and p.name != "trainer")
    snippet = (LORA if config.policy.train == "lora" else FULL).format(
        model=model, run=run, checkpoint=checkpoint, denoisers=denoisers
    )
    rewards = ", ".join(f"{reward.name} (weight {reward.weight:g})" for reward in config.rewards)
    text = f"""# {config.name}

Trained from `{config.policy.model}` with mmrl.

- Method: {config.algorithm.name}, {config.policy.train} training, seed {config.seed}
- Rewards: {rewards}
- Data: `{config.data.path}`, {config.data.groups} prompts × {config.data.group_size} samples an iteration
- Iterations: {config.training.iterations}

{_results(run)}
## Load it

```python
from diffusers import DiffusionPipeline

{snippet}
```

The whole configuration is in `config.yaml`, the curves and pictures are in `report.html`.
"""
    path = run / "README.md"
    path.write_text(text, encoding="utf-8")
    return path


def _results(run: Path) -> str:
    rows = load_run(run).metrics("evaluation")
    if len(rows) < 2:
        return ""
    names = [name for name in rows[0] if name.startswith("evaluation/") and name in rows[-1]]
    table = ["| | before | after |", "|-|-|-|"]
    for name in names:
        table.append(f"| {name.removeprefix('evaluation/')} | {_shown(rows[0][name])} | {_shown(rows[-1][name])} |")
    return "\n".join(["## Results", "", *table, ""])


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
