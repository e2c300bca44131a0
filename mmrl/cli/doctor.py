"""`mmrl doctor`: list dependencies and the commands that repair them, or the pipelines that can be trained."""

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
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from mmrl.generation.diffusion.support import PipelineSupport
    from mmrl.generation.diffusion.support import State as SupportState

State = Literal["ok", "missing", "broken", "not for here"]


@dataclass(frozen=True)
class Dependency:
    """A module that mmrl uses."""

    module: str
    distribution: str
    purpose: str
    required: bool = False
    extra: str | None = None
    """The extra of mmrl-suite that installs it."""
    unavailable: Callable[[], str | None] = lambda: None
    """Returns the reason why it cannot be installed on this machine, or None."""


@dataclass(frozen=True)
class Finding:
    """A line of the table."""

    name: str
    state: State
    version: str
    purpose: str
    required: bool
    remedy: str = ""


def _decord_unavailable() -> str | None:
    served = sys.platform == "linux" and platform.machine() == "x86_64"
    return None if served else "has wheels for Linux on x86-64 alone; PyAV reads videos here"


def _xformers_unavailable() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "has no operators for a machine without CUDA"


def _rapidocr_unavailable() -> str | None:
    return "has no wheels for Python 3.13 and later" if sys.version_info >= (3, 13) else None


def _triton_unavailable() -> str | None:
    return None if sys.platform == "linux" else "has wheels for Linux alone"


DEPENDENCIES = (
    Dependency("torch", "torch", "tensors and gradients", required=True),
    Dependency("torchvision", "torchvision", "image transforms of open_clip and transformers", required=True),
    Dependency("diffusers", "diffusers", "pipelines that draw", required=True),
    Dependency("transformers", "transformers", "vision-language models and text encoders", required=True),
    Dependency("accelerate", "accelerate", "launching, precision, several GPUs", required=True),
    Dependency("peft", "peft", "LoRA", required=True),
    Dependency("open_clip", "open_clip_torch", "CLIP scores", required=True),
    Dependency("av", "av", "reading videos (PyAV)", required=True),
    Dependency("decord", "decord", "reading videos faster", unavailable=_decord_unavailable),
    Dependency("xformers", "xformers", "memory-efficient attention", extra="xformers",
               unavailable=_xformers_unavailable),
    Dependency("gradio", "gradio", "mmrl demo", extra="demo"),
    Dependency("vllm", "vllm", "fast rollouts, from a separate environment", extra="vllm"),
    Dependency("openai", "openai", "rewards by a judge model", extra="judge"),
    Dependency("rapidocr_onnxruntime", "rapidocr-onnxruntime", "rewards that read text in pictures", extra="ocr",
               unavailable=_rapidocr_unavailable),
    Dependency("tensorboard", "tensorboard", "run.trackers=[tensorboard]", extra="track"),
    Dependency("wandb", "wandb", "run.trackers=[wandb]", extra="track"),
    Dependency("triton", "triton", "compiled kernels", unavailable=_triton_unavailable),
    Dependency("mmrl_kernels", "mmrl-suite", "mmrl's own kernels", required=True),
)  # fmt: skip


def doctor(
    pipelines: Annotated[
        bool,
        typer.Option("--pipelines", help="List which pipelines of the installed diffusers can be trained instead."),
    ] = False,
    vlms: Annotated[
        bool,
        typer.Option("--vlms", help="List which vision-language models of the installed transformers can be trained."),
    ] = False,
) -> None:
    """List what is installed and what is missing, with the command that repairs it."""
    if pipelines:
        list_pipelines()
    if vlms:
        from mmrl.cli.vlm_table import list_vlm_types

        list_vlm_types()
    if pipelines or vlms:
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    with console.status("Importing everything that mmrl can use ..."):
        findings = [_python(), *map(examine, DEPENDENCIES), _device(), shipped_weights()]
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


def examine(part: Dependency) -> Finding:
    """Import a dependency and return its state."""

    def found(state: State, version: str = "", remedy: str = "") -> Finding:
        return Finding(part.module, state, version, part.purpose, part.required, remedy)

    try:
        if importlib.util.find_spec(part.module) is None:
            reason = part.unavailable()
            return found("not for here", remedy=reason) if reason else found("missing", remedy=install(part))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(part.module)
    except Exception as err:  # a broken installation may raise anything; the error is the finding
        reason = " ".join(f"{type(err).__name__}: {err}".split())
        return found("broken", _version(part), f"{reason[:300]}; try: {install(part, again=True)}")
    return found("ok", _version(part))


def install(part: Dependency, again: bool = False) -> str:
    """Return the command that installs a dependency, or installs it again."""
    force = "--force-reinstall " if again else ""
    wanted = f"mmrl-suite[{part.extra}]" if part.extra and not again else requirement(part.distribution)
    command = f'pip install {force}"{wanted}"'
    if part.extra == "vllm":  # pins its versions of torch and transformers
        return f"python -m venv vllm-env && vllm-env/bin/{command}"
    return command


def requirement(distribution: str) -> str:
    """Return the distribution with the versions that mmrl's metadata require."""
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
    """Return whether the package contains the weights of ShapeWorld's models."""
    spec = importlib.util.find_spec("mmrl_shapeworld")
    home = folder or Path(str(spec.origin if spec else "")).parent / "weights"
    files = [path for path in home.rglob("*.safetensors") if path.stat().st_size > 0] if home.is_dir() else []
    size = f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB"
    purpose = "the quickstart's model and data"
    if files:
        return Finding("ShapeWorld weights", "ok", size, purpose, required=True)
    checkout = (home.parents[2] / "pyproject.toml").is_file()
    command = (
        "git checkout -- shapeworld/mmrl_shapeworld/weights" if checkout else install(DEPENDENCIES[-1], again=True)
    )
    remedy = f"{home} holds no weights; try: {command}"
    return Finding("ShapeWorld weights", "missing", "", purpose, required=True, remedy=remedy)


def unusable(findings: Iterable[Finding]) -> list[str]:
    """Return the names of the required dependencies that are missing or broken."""
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
    except Exception as err:  # torch's message is the finding
        return Finding("device", "broken", "", purpose, False, f"{type(err).__name__}: {err}".splitlines()[0])
    return Finding("device", "ok", device, purpose, False)


def _version(part: Dependency) -> str:
    try:
        return importlib.metadata.version(part.distribution)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(part.module), "__version__", ""))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


MEANING: dict[SupportState, str] = {
    "proven": "a tiny pipeline of the class is recorded and replayed exactly, with gradients, by a test",
    "expected": "not tested, but without known obstacles: a known denoiser, a scheduler of a supported family",
    "refused": "cannot be trained; training stops with the reason",
}


def list_pipelines() -> None:
    """Print every class with its state; for a refused one, the reason."""
    from rich.table import Table
    from rich.text import Text

    from mmrl.cli.console import console

    out = console()
    with out.status("Importing every pipeline of diffusers ..."):
        found = installed_support()
    colours: dict[SupportState, str] = {"proven": "green", "expected": "yellow", "refused": "red"}
    table = Table("pipeline", "state", box=None)
    table.add_column("why", overflow="fold")
    for each in sorted(found, key=lambda row: (list(MEANING).index(row.state), row.name)):
        table.add_row(each.name, Text(each.state, colours[each.state]), each.reason)
    out.print(table)
    for state, meaning in MEANING.items():
        out.print(f"{sum(each.state == state for each in found)} {state}: {meaning}", soft_wrap=True)


def installed_support() -> list[PipelineSupport]:
    """Return all pipeline classes of the installed diffusers. Import warnings of deprecated ones are suppressed."""
    from mmrl.cli.console import quiet_diffusers
    from mmrl.generation.diffusion.support import list_support

    with quiet_diffusers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list_support()
