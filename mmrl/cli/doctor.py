"""`mmrl doctor`: what is installed, what is missing or broken, and the command that mends it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from mmrl.cli.pipelines import list_pipelines

State = Literal["ok", "missing", "broken", "not for here"]


@dataclass(frozen=True)
class Part:
    """Something that mmrl uses."""

    module: str
    distribution: str
    purpose: str
    required: bool = False
    extra: str | None = None
    """The extra of mmrl-suite that brings it."""
    not_for_here: Callable[[], str | None] = lambda: None
    """Why it cannot be installed on this machine, or None."""


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    name: str
    state: State
    version: str
    purpose: str
    required: bool
    remedy: str = ""


def _decord_refusal() -> str | None:
    served = sys.platform == "linux" and platform.machine() == "x86_64"
    return None if served else "has wheels for Linux on x86-64 alone; PyAV reads videos here"


def _xformers_refusal() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "has no operators for a machine without CUDA"


def _rapidocr_refusal() -> str | None:
    return "has no wheels for Python 3.13 and later" if sys.version_info >= (3, 13) else None


def _triton_refusal() -> str | None:
    return None if sys.platform == "linux" else "has wheels for Linux alone"


PARTS = (
    Part("torch", "torch", "tensors and gradients", required=True),
    Part("torchvision", "torchvision", "image transforms of open_clip and transformers", required=True),
    Part("diffusers", "diffusers", "pipelines that draw", required=True),
    Part("transformers", "transformers", "vision-language models and text encoders", required=True),
    Part("accelerate", "accelerate", "launching, precision, several GPUs", required=True),
    Part("peft", "peft", "LoRA", required=True),
    Part("open_clip", "open_clip_torch", "CLIP scores", required=True),
    Part("av", "av", "reading videos (PyAV)", required=True),
    Part("decord", "decord", "reading videos faster", not_for_here=_decord_refusal),
    Part("xformers", "xformers", "memory-efficient attention", extra="xformers", not_for_here=_xformers_refusal),
    Part("gradio", "gradio", "mmrl demo", extra="demo"),
    Part("vllm", "vllm", "fast rollouts, from an environment of its own", extra="vllm"),
    Part("openai", "openai", "rewards by a judge model", extra="judge"),
    Part("rapidocr_onnxruntime", "rapidocr-onnxruntime", "rewards that read text in pictures", extra="ocr",
         not_for_here=_rapidocr_refusal),
    Part("tensorboard", "tensorboard", "run.trackers=[tensorboard]", extra="track"),
    Part("wandb", "wandb", "run.trackers=[wandb]", extra="track"),
    Part("triton", "triton", "compiled kernels", not_for_here=_triton_refusal),
    Part("mmrl_kernels", "mmrl-suite", "mmrl's own kernels", required=True),
)  # fmt: skip


def doctor(
    pipelines: Annotated[
        bool,
        typer.Option("--pipelines", help="List which pipelines of the installed diffusers can be trained instead."),
    ] = False,
) -> None:
    """Say what is installed, what is missing, and the command that mends it."""
    if pipelines:
        list_pipelines()
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    with console.status("Importing everything that mmrl can use ..."):
        findings = [_python(), *map(examine, PARTS), _device(), shipped_weights()]
    table = Table("part", "state", "version", box=None)
    table.add_column("what it is for", overflow="fold")
    colours: dict[State, str] = {"ok": "green", "missing": "yellow", "broken": "red", "not for here": "dim"}
    for each in findings:
        colour = "red" if each.required and each.state != "ok" else colours[each.state]
        state = f"{each.state} (required)" if each.required and each.state != "ok" else each.state
        table.add_row(each.name, Text(state, colour), Text(each.version), Text(each.purpose))
    console.print(table)
    for each in findings:
        if each.remedy:
            console.print(Text(f"{each.name}: {each.remedy}"), soft_wrap=True)
    failed = unusable(findings)
    console.print(Text(f"Not usable yet: {', '.join(failed)}." if failed else "Everything that is required is there."))
    raise typer.Exit(1 if failed else 0)


def examine(part: Part) -> Finding:
    """Whether a part can be imported."""

    def found(state: State, version: str = "", remedy: str = "") -> Finding:
        return Finding(part.module, state, version, part.purpose, part.required, remedy)

    try:
        if importlib.util.find_spec(part.module) is None:
            why_not = part.not_for_here()
            return found("not for here", remedy=why_not) if why_not else found("missing", remedy=install(part))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(part.module)
    except Exception as err:  # a border: whatever a broken installation raises is what we are here to show
        reason = " ".join(f"{type(err).__name__}: {err}".split())
        return found("broken", _version(part), f"{reason[:300]}; try: {install(part, again=True)}")
    return found("ok", _version(part))


def install(part: Part, again: bool = False) -> str:
    """The command that installs a part, or installs it again."""
    force = "--force-reinstall " if again else ""
    wanted = f"mmrl-suite[{part.extra}]" if part.extra and not again else requirement(part.distribution)
    command = f'pip install {force}"{wanted}"'
    if part.extra == "vllm":  # pins a torch and a transformers of its own
        return f"python -m venv vllm-env && vllm-env/bin/{command}"
    return command


def requirement(distribution: str) -> str:
    """The distribution with the versions that mmrl's own metadata asks for."""
    try:
        declared = importlib.metadata.requires("mmrl-suite") or []
    except importlib.metadata.PackageNotFoundError:
        return distribution  # run from a source tree
    for line in declared:
        name = re.match(r"[\w.-]+", line)
        if name and _canonical(name[0]) == _canonical(distribution):
            return line.partition(";")[0].strip()
    return distribution


def shipped_weights(folder: Path | None = None) -> Finding:
    """Whether the models of the embedded world are in the package."""
    spec = importlib.util.find_spec("mmrl_shapeworld")
    home = folder or Path(str(spec.origin if spec else "")).parent / "weights"
    files = [path for path in home.rglob("*.safetensors") if path.stat().st_size > 0] if home.is_dir() else []
    size = f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB"
    purpose = "the quickstart's model and data"
    if files:
        return Finding("ShapeWorld weights", "ok", size, purpose, required=True)
    checkout = (home.parents[2] / "pyproject.toml").is_file()
    command = "git checkout -- shapeworld/mmrl_shapeworld/weights" if checkout else install(PARTS[-1], again=True)
    remedy = f"{home} holds no weights; try: {command}"
    return Finding("ShapeWorld weights", "missing", "", purpose, required=True, remedy=remedy)


def unusable(findings: Iterable[Finding]) -> list[str]:
    """The required parts that are not there."""
    return [each.name for each in findings if each.required and each.state != "ok"]


def _python() -> Finding:
    new_enough = sys.version_info >= (3, 11)
    remedy = "" if new_enough else "mmrl needs Python 3.11 or newer"
    return Finding("python", "ok" if new_enough else "broken", platform.python_version(), sys.executable, True, remedy)


def _device() -> Finding:
    purpose = "where models run"
    try:
        import torch

        if torch.cuda.is_available():
            card = torch.cuda.get_device_properties(0)
            several = f"{torch.cuda.device_count()} x " if torch.cuda.device_count() > 1 else ""
            device = f"{several}{card.name}, {card.total_memory / 2**30:.0f} GiB"
        elif torch.backends.mps.is_available():
            device = "mps"
        else:
            threads = torch.get_num_threads()
            device = f"cpu, {threads} thread{'s' * (threads > 1)}"
    except Exception as err:  # a border: torch's own line tells the story
        return Finding("device", "broken", "", purpose, False, f"{type(err).__name__}: {err}".splitlines()[0])
    return Finding("device", "ok", device, purpose, False)


def _version(part: Part) -> str:
    try:
        return importlib.metadata.version(part.distribution)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(part.module), "__version__", ""))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
