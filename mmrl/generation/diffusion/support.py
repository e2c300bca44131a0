"""Which pipelines of the installed diffusers can be policies: proven, expected or refused, and why.

    proven    a tiny pipeline of the class is recorded and replayed exactly, with gradients, by a test
    expected  nothing stands in the way: a known denoiser, a scheduler of a covered family, pictures or videos come out
    refused   it cannot work; `PipelinePolicy` says so too

The first is a list that a test compares with the pipelines it ran; the others are read off the class, or stand in
`REFUSED` where reading does not tell.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import diffusers
from diffusers import DiffusionPipeline, SchedulerMixin
from diffusers.schedulers.scheduling_utils import KarrasDiffusionSchedulers

from mmrl.data.media.conditions import media_kind
from mmrl.generation.diffusion.denoiser_hook import DENOISERS
from mmrl.generation.diffusion.scheduler_families import supported_schedulers

State = Literal["proven", "expected", "refused"]

PROVEN = frozenset(Path(__file__).with_name("proven_pipelines.txt").read_text(encoding="utf-8").split())
"""The pipeline classes that the tests prove: those of the tiny pipelines in tests/generation/tiny."""

_FOLDED = "it steps every frame as a row of its own, which leaves a row without one log-probability"
_REMEMBERS = "its guidance has momentum that a replay cannot put back"
_LOOKS_INSIDE = "it reads attention maps inside its denoiser, which a replay that skips steps does not compute"
REFUSED: dict[str, str] = {
    "AnimateDiffControlNetPipeline": "one control video serves one row alone",
    "AnimateDiffSparseControlNetPipeline": "one control video serves one row alone",
    **dict.fromkeys(
        (
            "LEditsPPPipelineStableDiffusion",
            "LEditsPPPipelineStableDiffusionXL",
            "StableDiffusionAttendAndExcitePipeline",
            "StableDiffusionDiffEditPipeline",
            "StableDiffusionPix2PixZeroPipeline",
            "StableDiffusionSAGPipeline",
        ),
        _LOOKS_INSIDE,
    ),
    "I2VGenXLPipeline": _FOLDED,
    "CycleDiffusionPipeline": "it chooses the noise of its steps itself",
    "ChromaInpaintPipeline": "diffusers 0.42 reads a setting that its transformer does not have",
    "DreamLiteMobilePipeline": "it takes one prompt a call, as text",
    "DreamLitePipeline": "it takes one prompt a call, as text",
    "EasyAnimateControlPipeline": "diffusers 0.42 calls its encoder with an argument that this does not take",
    "EasyAnimateInpaintPipeline": "it takes its video as tensors only",
    "JoyImageEditPlusPipeline": "it takes lists of lists of pictures",
    "LTX2HDRPipeline": "it makes arrays of high dynamic range, no pictures",
    "LDMSuperResolutionPipeline": "it takes one picture a call",
    "MarigoldDepthPipeline": "it makes depth maps, no pictures",
    "MarigoldIntrinsicsPipeline": "it makes maps of materials, no pictures",
    "MarigoldNormalsPipeline": "it makes maps of normals, no pictures",
    "MotifVideoImage2VideoPipeline": "it makes one video a call",
    "SanaWMPipeline": "it takes one prompt a call, as text",
    "SemanticStableDiffusionPipeline": _REMEMBERS,
    "StableDiffusionLDM3DPipeline": "diffusers cannot convert its depth maps under NumPy 2",
    "StableDiffusionPanoramaPipeline": "it denoises overlapping views in turn, each with steps of its own",
    "StableDiffusionPipelineSafe": _REMEMBERS,
    "TextToVideoSDPipeline": _FOLDED,
    "TextToVideoZeroPipeline": "it draws one frame and warps it into the others",
    "TextToVideoZeroSDXLPipeline": "it draws one frame and warps it into the others",
    "VideoToVideoSDPipeline": _FOLDED,
    "WanVACEPipeline": "it makes one video a call",
    "VisualClozeGenerationPipeline": "its task stands in other arguments than the prompt",
    "VisualClozePipeline": "its task stands in other arguments than the prompt",
}
"""Classes that would run and be trained wrongly, or that cannot run at all, by name and why."""


@dataclass(frozen=True)
class PipelineSupport:
    """What is known of one pipeline class."""

    name: str
    state: State
    reason: str = ""


def list_support() -> list[PipelineSupport]:
    """One for every pipeline class of the installed diffusers, by name."""
    return [support_of(kind) for kind in pipeline_classes()]


def pipeline_classes() -> Iterator[type[DiffusionPipeline]]:
    """Every pipeline class that diffusers exports and this installation can import.

    Those of ONNX are left out: they run outside of torch. Beside onnxruntime, diffusers 0.42 names one that it has not.
    """
    for name in sorted(dir(diffusers)):
        if "Onnx" in name:
            continue
        kind = getattr(diffusers, name)
        if inspect.isclass(kind) and issubclass(kind, DiffusionPipeline) and kind is not DiffusionPipeline:
            yield kind


def support_of(kind: type[DiffusionPipeline]) -> PipelineSupport:
    """Whether a pipeline of this class can be a policy."""
    name = kind.__name__
    if name in PROVEN:
        return PipelineSupport(name, "proven")
    if why := unsupported_class_reason(kind):
        return PipelineSupport(name, "refused", why)
    return PipelineSupport(name, "expected")


def unsupported_class_reason(kind: type[DiffusionPipeline]) -> str | None:
    """Why no pipeline of this class can be a policy, or None."""
    if why := REFUSED.get(kind.__name__):
        return why
    components = inspect.signature(kind.__init__).parameters
    arguments = inspect.signature(kind.__call__).parameters
    if not any(each in components for each in DENOISERS):
        return f"it has no {', '.join(DENOISERS[:-1])} or {DENOISERS[-1]}"
    if _makes_sound(kind):
        return "it makes sound alone; rewards take pictures and videos"
    if "prompt" not in arguments and not any(media_kind(each) for each in arguments):
        return "it takes neither a prompt nor pictures"
    if needed := [name for name, each in arguments.items() if _cannot_be_given(name, each)]:
        return f"it needs {', '.join(needed)}, which no line of a data set can hold"
    return _unsupported_scheduler_reason(components)


def _cannot_be_given(name: str, argument: inspect.Parameter) -> bool:
    tensors = {"embeds", "embeddings", "latents"} & set(name.split("_"))
    return bool(tensors) and argument.default is argument.empty


def _unsupported_scheduler_reason(components: Any) -> str | None:
    if "scheduler" not in components:
        return "it has no scheduler"
    allowed = components["scheduler"].annotation
    names = [each if isinstance(each, str) else each.__name__ for each in get_args(allowed) or (allowed,)]
    anything = {KarrasDiffusionSchedulers.__name__, SchedulerMixin.__name__, "_empty"}
    if {name.rsplit(".", 1)[-1] for name in names} & {*supported_schedulers(), *anything}:
        return None
    return f"its scheduler, {' or '.join(names)}, is of no covered family"


def _makes_sound(kind: type[DiffusionPipeline]) -> bool:
    module = importlib.import_module(kind.__module__)
    sound = hasattr(module, "AudioPipelineOutput")
    return sound and not any("Image" in name or "Video" in name for name in vars(module) if name.endswith("Output"))
