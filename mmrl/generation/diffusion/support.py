"""The pipeline classes of the installed diffusers that can be policies, and the reasons why others cannot.

    proven    a test records and replays a tiny pipeline of the class exactly, with gradients
    expected  all requirements are met: a known denoiser, a supported scheduler, images or videos as output
    refused   the class cannot work; `PipelinePolicy` raises

`PROVEN` is a list that a test compares with the pipelines it ran. The other states are derived from the class, or
listed in `REFUSED` where that is not possible.
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

from mmrl.data.media.sample_media import media_kind
from mmrl.generation.diffusion.denoiser_hook import DENOISERS
from mmrl.generation.diffusion.scheduler_families import supported_schedulers

State = Literal["proven", "expected", "refused"]

PROVEN = frozenset(Path(__file__).with_name("proven_pipelines.txt").read_text(encoding="utf-8").split())
"""The classes of the tiny pipelines in tests/generation/tiny_pipelines, which the tests record and replay."""

_FRAMES_AS_ROWS = "it steps every frame as a separate row, so a video has no single log-probability"
_MOMENTUM = "its guidance has momentum that a replay cannot restore"
_READS_ATTENTION = "it reads attention maps inside its denoiser, which a replay that skips steps does not compute"
REFUSED: dict[str, str] = {
    "AnimateDiffControlNetPipeline": "one control video is for one row only",
    "AnimateDiffSparseControlNetPipeline": "one control video is for one row only",
    **dict.fromkeys(
        (
            "LEditsPPPipelineStableDiffusion",
            "LEditsPPPipelineStableDiffusionXL",
            "StableDiffusionAttendAndExcitePipeline",
            "StableDiffusionDiffEditPipeline",
            "StableDiffusionPix2PixZeroPipeline",
            "StableDiffusionSAGPipeline",
        ),
        _READS_ATTENTION,
    ),
    "I2VGenXLPipeline": _FRAMES_AS_ROWS,
    "CycleDiffusionPipeline": "it chooses the noise of its steps itself",
    "ChromaInpaintPipeline": "diffusers 0.42 reads a setting that its transformer does not have",
    "DreamLiteMobilePipeline": "it takes one prompt per call, as text",
    "DreamLitePipeline": "it takes one prompt per call, as text",
    "EasyAnimateControlPipeline": "diffusers 0.42 calls its encoder with an argument that this does not take",
    "EasyAnimateInpaintPipeline": "it takes its video as tensors only",
    "JoyImageEditPlusPipeline": "it takes lists of lists of images",
    "LTX2HDRPipeline": "it makes arrays of high dynamic range, no images",
    "LDMSuperResolutionPipeline": "it takes one image per call",
    "MarigoldDepthPipeline": "it makes depth maps, no images",
    "MarigoldIntrinsicsPipeline": "it makes maps of materials, no images",
    "MarigoldNormalsPipeline": "it makes maps of normals, no images",
    "SanaWMPipeline": "it takes one prompt per call, as text",
    "SemanticStableDiffusionPipeline": _MOMENTUM,
    "StableDiffusionLDM3DPipeline": "diffusers cannot convert its depth maps under NumPy 2",
    "StableDiffusionPanoramaPipeline": "it denoises overlapping views in turn, each with separate steps",
    "StableDiffusionPipelineSafe": _MOMENTUM,
    "TextToVideoSDPipeline": _FRAMES_AS_ROWS,
    "TextToVideoZeroPipeline": "it draws one frame and warps it into the others",
    "TextToVideoZeroSDXLPipeline": "it draws one frame and warps it into the others",
    "VideoToVideoSDPipeline": _FRAMES_AS_ROWS,
    "VisualClozeGenerationPipeline": "its task is in other arguments than the prompt",
    "VisualClozePipeline": "its task is in other arguments than the prompt",
}
"""Classes that cannot run, or would be trained wrongly without an error, with the reason."""


@dataclass(frozen=True)
class PipelineSupport:
    """The state of a pipeline class."""

    name: str
    state: State
    reason: str = ""


def list_support() -> list[PipelineSupport]:
    """Return the state of every pipeline class of the installed diffusers, sorted by name."""
    return [support_of(kind) for kind in pipeline_classes()]


def pipeline_classes() -> Iterator[type[DiffusionPipeline]]:
    """Yield every pipeline class that diffusers exports and this installation can import.

    ONNX classes are left out: they run outside of torch, and diffusers 0.42 exports one that it does not have.
    """
    for name in sorted(dir(diffusers)):
        if "Onnx" in name:
            continue
        kind = getattr(diffusers, name)
        if inspect.isclass(kind) and issubclass(kind, DiffusionPipeline) and kind is not DiffusionPipeline:
            yield kind


def support_of(kind: type[DiffusionPipeline]) -> PipelineSupport:
    """Return the state of a pipeline class."""
    name = kind.__name__
    if name in PROVEN:
        return PipelineSupport(name, "proven")
    if reason := unsupported_class_reason(kind):
        return PipelineSupport(name, "refused", reason)
    return PipelineSupport(name, "expected")


def refused_reason(kind: type[DiffusionPipeline]) -> str | None:
    """Return the reason why pipelines of this class are refused as policies, or None.

    A user's class is refused where it inherits from one in `REFUSED`: its signature may differ from those of diffusers.
    """
    if reason := next((REFUSED[each.__name__] for each in kind.__mro__ if each.__name__ in REFUSED), None):
        return reason
    of_diffusers = getattr(diffusers, kind.__name__, None) is kind
    return support_of(kind).reason or None if of_diffusers else None


def unsupported_class_reason(kind: type[DiffusionPipeline]) -> str | None:
    """Return the reason why no pipeline of this class can be a policy, or None."""
    if reason := REFUSED.get(kind.__name__):
        return reason
    components = inspect.signature(kind.__init__).parameters
    arguments = inspect.signature(kind.__call__).parameters
    if not any(each in components for each in DENOISERS):
        return f"it has no {', '.join(DENOISERS[:-1])} or {DENOISERS[-1]}"
    if _makes_sound(kind):
        return "it makes only sound; rewards take images and videos"
    if "prompt" not in arguments and not any(media_kind(each) for each in arguments):
        return "it takes neither a prompt nor images"
    tensors = {"embeds", "embeddings", "latents"}
    required = [name for name, each in arguments.items() if each.default is each.empty]
    if needed := [name for name in required if tensors & set(name.split("_"))]:
        return f"it needs {', '.join(needed)}, which a line of a data set cannot contain"
    return _unsupported_scheduler_reason(components)


def _unsupported_scheduler_reason(components: Any) -> str | None:
    if "scheduler" not in components:
        return "it has no scheduler"
    allowed = components["scheduler"].annotation
    names = [each if isinstance(each, str) else each.__name__ for each in get_args(allowed) or (allowed,)]
    anything = {KarrasDiffusionSchedulers.__name__, SchedulerMixin.__name__, "_empty"}
    if {name.rsplit(".", 1)[-1] for name in names} & {*supported_schedulers(), *anything}:
        return None
    return f"its scheduler, {' or '.join(names)}, is of no supported family"


def _makes_sound(kind: type[DiffusionPipeline]) -> bool:
    module = importlib.import_module(kind.__module__)
    sound = hasattr(module, "AudioPipelineOutput")
    return sound and not any("Image" in name or "Video" in name for name in vars(module) if name.endswith("Output"))
