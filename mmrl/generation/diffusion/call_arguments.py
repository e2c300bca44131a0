"""From a sampling configuration to the arguments of a pipeline's `__call__`, checked against its signature."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from diffusers import DiffusionPipeline
from transformers import CLIPTokenizer, PreTrainedTokenizerBase

from mmrl.config.sampling import SamplingConfig
from mmrl.data.media.conditions import MediaKind, is_video, map_media, media_kind
from mmrl.data.media.decode import load_image, load_mask, load_video
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, UnsupportedError
from mmrl.generation.diffusion.denoiser_hook import guiders_of

_SET_BY = {
    "num_inference_steps": "sampling.steps",
    "guidance_scale": "sampling.guidance_scale",
    "height": "sampling.height",
    "width": "sampling.width",
    "num_frames": "sampling.num_frames",
    "negative_prompt": "sampling.negative_prompt",
    "eta": "sampling.transition.noise_level",
}
_OF_A_SAMPLE = ("height", "width", "num_frames")
"""What a sample may also say for itself."""
_OURS = {
    "prompt": "prompts come from the samples",
    "generator": "seeds are the run's",
    "latents": "initial noise comes from the run's seed",
    "num_images_per_prompt": "each trajectory is a row of its own: set data.group_size",
    "num_videos_per_prompt": "each trajectory is a row of its own: set data.group_size",
    "output_type": "rewards take PIL images",
    "return_dict": "the policy reads the output",
    "timesteps": "the schedule is sampling.steps'",
}


def call_arguments(pipeline: DiffusionPipeline, sampling: SamplingConfig, samples: Sequence[Sample]) -> dict[str, Any]:
    """Keywords for `pipeline(...)`, one row a sample; generators are the caller's to add.

    Samples with conditions must all be the same one: what a list of pictures means differs between pipelines (one for
    each row, or several for every row), while one prompt, its pictures and a number of outputs mean the same to all.

    Raises:
        ConfigError: an argument that this pipeline does not take, or that is set elsewhere.
        ValueError: samples with conditions that differ.
        DataError: a picture or video that cannot be read.
    """
    known = inspect.signature(type(pipeline).__call__).parameters
    alone = any(sample.conditions for sample in samples)
    if alone and any(sample != samples[0] for sample in samples):
        raise ValueError("samples with pictures or other conditions are drawn in a call of their own each")
    layout = make_layout(type(pipeline).__name__, known, len(samples), pictured=alone)
    chosen: dict[str, Any] = {
        "num_inference_steps": sampling.steps,
        "guidance_scale": sampling.guidance_scale,
        "height": sampling.height,
        "width": sampling.width,
        "num_frames": sampling.num_frames,
        "negative_prompt": None if sampling.negative_prompt is None else [sampling.negative_prompt] * layout.prompts,
    }
    arguments = {name: value for name, value in chosen.items() if value is not None}
    if guiders_take_scale(pipeline) and arguments.pop("guidance_scale", None) is not None:
        guiders = guiders_of(pipeline)
        if not any(hasattr(each, "guidance_scale") for each in guiders):
            raise ConfigError(f"sampling.guidance_scale: {type(guiders[0]).__name__}, the pipeline's guider, has none")
    for name in arguments:
        if name not in known:
            raise ConfigError(f"{_SET_BY[name]}: {type(pipeline).__name__} takes no {name}")
    for name, value in sampling.pipeline_args.items():
        _check_extra(name, pipeline, known)
        arguments[name] = value
    if "prompt" in known:
        arguments["prompt"] = [sample.prompt for sample in samples[: layout.prompts]]
    if alone:
        _check_no_state_before_loop(pipeline, samples[0].conditions)
        arguments |= load_conditions(samples[0], layout.pictures, alpha=type(pipeline).__name__ in WITH_ALPHA)
    if layout.count:
        arguments[layout.count] = len(samples)
    if "eta" in known and sampling.transition.name == "native":  # TCD draws noise by it; no other native scheduler asks
        arguments["eta"] = sampling.transition.noise_level
    if "output_type" in known:
        arguments["output_type"] = "pil"
    return arguments


def guiders_take_scale(pipeline: DiffusionPipeline) -> bool:
    """Whether the guidance scale is set on the pipeline's guider, and is no argument of its call."""
    known = inspect.signature(type(pipeline).__call__).parameters
    return "guidance_scale" not in known and bool(guiders_of(pipeline))


_WRITTEN_BEFORE_THE_LOOP = {"GlmImagePipeline": "image"}
"""Conditions for which the denoiser is called before the loop, to leave something that every step reads."""


def _check_no_state_before_loop(pipeline: DiffusionPipeline, conditions: Iterable[str]) -> None:
    name = type(pipeline).__name__
    condition = _WRITTEN_BEFORE_THE_LOOP.get(name)
    if condition is not None and condition in conditions:
        raise UnsupportedError(f"{name} with {condition} writes a cache before its first step, which a replay does "
                               f"not: train it without {condition}")  # fmt: skip


def check_samples(pipeline: DiffusionPipeline, samples: Iterable[Sample]) -> None:
    """Whether the pipeline takes what the samples give, and gets all that it needs.

    Raises:
        ConfigError: a condition that is no argument of the pipeline or that the run sets; a condition that is missing,
            or that some samples have and others do not.
    """
    known = inspect.signature(type(pipeline).__call__).parameters
    needed = {name for name, each in known.items() if name != "self" and _must_be_given(name, each)}
    name = type(pipeline).__name__
    first: Sample | None = None
    for sample in samples:
        _check_conditions(sample, name, known)
        if missing := ", ".join(sorted(needed - sample.conditions.keys())):
            raise ConfigError(f"sample {sample.id!r} gives no {missing}, which {name} needs")
        first = first or sample
        if odd := ", ".join(sorted(sample.conditions.keys() ^ first.conditions.keys())):
            raise ConfigError(f"samples {first.id!r} and {sample.id!r} differ in what they give: {odd}")


def _must_be_given(name: str, argument: inspect.Parameter) -> bool:
    ours = name in _OURS or name in _SET_BY
    return not ours and argument.default is inspect.Parameter.empty and argument.kind is not argument.VAR_KEYWORD


def _check_conditions(sample: Sample, pipeline: str, known: Mapping[str, Any]) -> None:
    for name in sample.conditions:
        if name in _OURS:
            raise ConfigError(f"sample {sample.id!r}: {name}: {_OURS[name]}")
        if name in _SET_BY and name not in _OF_A_SAMPLE:
            raise ConfigError(f"sample {sample.id!r}: {name} is the run's: set {_SET_BY[name]}")
        if name not in known or name == "self":
            taken = ", ".join(each for each in known if media_kind(each)) or "none"
            raise ConfigError(f"sample {sample.id!r}: {name!r} is not an argument of {pipeline}{_near(name, known)}; "
                              f"it takes these pictures and videos: {taken}")  # fmt: skip


def load_conditions(sample: Sample, copies: int | None, alpha: bool = False) -> dict[str, Any]:
    """A sample's conditions with pictures as PIL images and videos as lists of them; `copies` of each in a list."""

    def load(kind: MediaKind, path: str) -> Any:
        if is_video(kind, path):
            frames = load_video(path, sample.id)
            media: Any = [frame.convert("L") for frame in frames] if kind == "mask" else frames
        else:
            media = load_mask(path, sample.id) if kind == "mask" else load_image(path, sample.id, alpha)
        return media if copies is None else [media] * copies

    return map_media(sample.conditions, load)


def _check_extra(name: str, pipeline: DiffusionPipeline, known: Any) -> None:
    if name in _SET_BY:
        raise ConfigError(f"sampling.pipeline_args.{name}: set {_SET_BY[name]} instead")
    if name in _OURS:
        raise ConfigError(f"sampling.pipeline_args.{name}: {_OURS[name]}")
    if name not in known or name == "self":
        raise ConfigError(f"sampling.pipeline_args.{name} is not an argument of {type(pipeline).__name__}"
                          f"{_near(name, known)}")  # fmt: skip


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f": did you mean {near[0]}?" if near else ""


# How many outputs of one sample are asked for, where the sample has pictures.
#
# Most pipelines take one prompt, its pictures and a number of outputs. Those that take no number, and those named here,
# which ignore it or look up a picture for every row, get the prompt and the pictures once a row. That cannot be the
# rule, for to others several pictures are all references of every row (Flux.2, Qwen-Image-Edit-Plus). Read in the
# source of diffusers 0.42.


COUNTS = ("num_images_per_prompt", "num_videos_per_prompt")
"""What pipelines call the number of outputs of one prompt."""

IMAGE_PER_ROW = frozenset(
    {
        "AnimateDiffVideoToVideoControlNetPipeline",
        "AnimateDiffVideoToVideoPipeline",
        "CogVideoXFunControlPipeline",
        "CogVideoXImageToVideoPipeline",
        "CogVideoXVideoToVideoPipeline",
        "ConsisIDPipeline",
        "Cosmos2VideoToWorldPipeline",
        "Cosmos2_5_TransferPipeline",
        "HunyuanImageRefinerPipeline",
        "HunyuanSkyreelsImageToVideoPipeline",
        "HunyuanVideoFramepackPipeline",
        "HunyuanVideoImageToVideoPipeline",
        "KandinskyImg2ImgCombinedPipeline",
        "Kandinsky5I2IPipeline",
        "LucyEditPipeline",
        "PIAPipeline",
        "SkyReelsV2DiffusionForcingVideoToVideoPipeline",
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3PAGImg2ImgPipeline",
        "StableDiffusionInstructPix2PixPipeline",
        "StableDiffusionLatentUpscalePipeline",
        "StableDiffusionXLInstructPix2PixPipeline",
        "StableVideoDiffusionPipeline",
        "WanVideoToVideoPipeline",
        "ZImageControlNetInpaintPipeline",
    }
)

IMAGE_FOR_ALL = frozenset(
    {
        "ChronoEditPipeline",
        "LTX2ImageToVideoPipeline",
        "LTXImageToVideoPipeline",
        "SanaImageToVideoPipeline",
    }
)
"""Classes whose one picture serves every row, each with a prompt of its own."""

WITH_ALPHA = frozenset({"QwenImageLayeredPipeline"})
"""Classes whose pictures have four channels, and that convert none."""

SINGLE_GENERATOR = frozenset(
    {
        "Cosmos2_5_PredictBasePipeline",
        "HeliosPipeline",
        "LTX2ConditionPipeline",
        "LTX2ImageToVideoPipeline",
        "LTXImageToVideoPipeline",
    }
)
"""Classes that take no list of random generators: one draws the noise of all rows, in order."""


@dataclass(frozen=True)
class BatchLayout:
    """How one call asks for several rows."""

    prompts: int
    """How often the prompt is handed over."""
    count: str | None = None
    """The argument that takes the number of rows; None: there are as many rows as prompts."""
    pictures: int | None = None
    """How often each picture is handed over; None: by itself, not in a list."""


def make_layout(pipeline: str, arguments: Container[str], rows: int, pictured: bool) -> BatchLayout:
    """For a class of this name, whose call takes these arguments; `pictured`: samples give more than a prompt."""
    if not pictured or pipeline in IMAGE_FOR_ALL:
        return BatchLayout(prompts=rows)
    count = next((name for name in COUNTS if name in arguments), None)
    if count is None or pipeline in IMAGE_PER_ROW:
        return BatchLayout(prompts=rows, pictures=rows)
    return BatchLayout(prompts=1, count=count)


# Prompts that no text encoder of a pipeline reads to the end. diffusers cuts them; here they are counted and named.


UNLIMITED = 10**6  # tokens; transformers writes 1e30 where a tokenizer states no limit
SPECIAL = 8  # tokens around a prompt, at most
SHOWN = 3  # prompts named in the report

logger = logging.getLogger(__name__)


def token_limits(pipeline: DiffusionPipeline, sampling: SamplingConfig) -> dict[str, int]:
    """Tokens that each tokenizer with a text encoder passes on, by component name.

    CLIP reads what its positions allow, whatever the call says; other encoders read `max_sequence_length`, where the
    pipeline has it.
    """
    argument = inspect.signature(type(pipeline).__call__).parameters.get("max_sequence_length")
    asked = sampling.pipeline_args.get("max_sequence_length", argument.default if argument else None)
    limits: dict[str, int] = {}
    for name, tokenizer in _tokenizers(pipeline).items():
        if isinstance(asked, int) and not isinstance(tokenizer, CLIPTokenizer):
            limits[name] = asked
        else:
            limits[name] = int(tokenizer.model_max_length)
    return limits


def find_truncated_prompts(
    pipeline: DiffusionPipeline, sampling: SamplingConfig, samples: Iterable[Sample]
) -> tuple[dict[str, int], int]:
    """Tokens of each prompt that every text encoder cuts, by sample id, and the tokens that are read at most.

    A prompt that one encoder reads to the end is not cut: SD3's and Flux's T5 sees what their CLIP does not.
    """
    limits = token_limits(pipeline, sampling)
    if not limits or (most := max(limits.values())) >= UNLIMITED:
        return {}, UNLIMITED
    tokenizers = _tokenizers(pipeline)
    left = {s.id: s.prompt for s in samples if len(s.prompt.encode()) + SPECIAL > most}  # a token is a byte or more
    lengths: dict[str, int] = {}  # in tokens of the encoder that reads the most
    for name in sorted(limits, key=lambda name: -limits[name]):
        if left:
            ids = tokenizers[name](list(left.values()), verbose=False).input_ids
            counts = dict(zip(left, map(len, ids), strict=True))
            lengths = counts | lengths
            left = {id: prompt for id, prompt in left.items() if counts[id] > limits[name]}
    return {id: lengths[id] for id in left}, most


def warn_truncated_prompts(pipeline: DiffusionPipeline, sampling: SamplingConfig, samples: list[Sample]) -> None:
    """Warn once, with the number of prompts that are cut and the first of them."""
    cut, most = find_truncated_prompts(pipeline, sampling, samples)
    if cut:
        first = ", ".join(f"{name!r} ({tokens} tokens)" for name, tokens in list(cut.items())[:SHOWN])
        logger.warning(
            "%d of %d prompts are longer than the %d tokens that the text encoders read, and what is beyond has no "
            "effect on the pictures, though rewards see it: %s%s",
            len(cut), len(samples), most, first, ", ..." if len(cut) > SHOWN else "",
        )  # fmt: skip


def _tokenizers(pipeline: DiffusionPipeline) -> Mapping[str, PreTrainedTokenizerBase]:
    """Those whose text encoder is loaded: `tokenizer_3` belongs to `text_encoder_3`."""
    return {
        name: component
        for name, component in pipeline.components.items()
        if isinstance(component, PreTrainedTokenizerBase)
        and pipeline.components.get(name.replace("tokenizer", "text_encoder"), component) is not None
    }
