"""The arguments of a pipeline's `__call__`, from a sampling configuration and samples, checked against its signature.

Samples with images are requested in one of two layouts. Most pipelines take one prompt, its images and a number of
outputs. Those that take no number, and those in `IMAGE_PER_ROW`, which ignore it or look up an image for every row, get
the prompt and the images once per row. That cannot be the rule: to other pipelines several images are all references of
every row (Flux.2, Qwen-Image-Edit-Plus). The lists were read off the source of diffusers 0.42. A call of a class in
`ROWS_APART` may have rows of several samples, each with a different image; of `ONE_ROW` it has one row.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

from diffusers import DiffusionPipeline
from transformers import CLIPTokenizer, PreTrainedTokenizerBase

from mmrl.config.sampling import SamplingConfig
from mmrl.data.media.decode import load_image, load_mask, load_video
from mmrl.data.media.sample_media import MediaKind, is_video, map_media, media_kind
from mmrl.data.sample import Sample
from mmrl.errors import CallRefused, ConfigError, UnsupportedError
from mmrl.generation.diffusion.denoiser_hook import guiders_of
from mmrl.suggestions import did_you_mean

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
"""Arguments that a sample may set too."""
_OURS = {
    "prompt": "prompts come from the samples",
    "generator": "seeds are the run's",
    "latents": "initial noise comes from the run's seed",
    "num_images_per_prompt": "each trajectory is a separate row: set data.group_size",
    "num_videos_per_prompt": "each trajectory is a separate row: set data.group_size",
    "output_type": "rewards take PIL images",
    "return_dict": "the policy reads the output",
    "timesteps": "the schedule is sampling.steps'",
}


def call_arguments(pipeline: DiffusionPipeline, sampling: SamplingConfig, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return keywords for `pipeline(...)`, one row per sample; the caller adds generators.

    Samples with conditions must all be the same one: a list of images means one per row to some pipelines and several
    for every row to others, while one prompt, its images and a number of outputs mean the same to all. Samples that
    differ are for the classes of `ROWS_APART` alone.

    Raises:
        ConfigError: an argument that this pipeline does not take, or that is set elsewhere.
        ValueError: samples with conditions that differ.
        ConfigError: several samples, and a call of this class makes one picture or video.
        DataError: an image or video cannot be read.
    """
    known = inspect.signature(type(pipeline).__call__).parameters
    check_rows(pipeline, len(samples))
    conditioned = any(sample.conditions for sample in samples)
    apart = conditioned and any(sample != samples[0] for sample in samples)
    if apart and type(pipeline).__name__ not in ROWS_APART:
        raise ValueError("samples with images or other conditions need a separate call each")
    layout = make_layout(type(pipeline).__name__, known, len(samples), conditioned=conditioned)
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
    if samples and type(pipeline).__name__ in PROMPT_AS_TEXT:
        arguments |= {name: arguments[name][0] for name in ("prompt", "negative_prompt") if name in arguments}
    if conditioned:
        if type(pipeline).__name__ == "GlmImagePipeline" and "image" in samples[0].conditions:
            raise UnsupportedError("GlmImagePipeline with image writes a cache before its first step, which a replay "
                                   "does not: train it without image")  # fmt: skip
        alpha = type(pipeline).__name__ in WITH_ALPHA
        arguments |= rows_of_conditions(samples) if apart else load_conditions(samples[0], layout.images, alpha)
    if layout.count:
        arguments[layout.count] = len(samples)
    if "eta" in known and sampling.transition.name == "native":  # read by TCD alone
        arguments["eta"] = sampling.transition.noise_level
    if "output_type" in known:
        arguments["output_type"] = "pil"
    return arguments


def guiders_take_scale(pipeline: DiffusionPipeline) -> bool:
    """Return whether the guidance scale is set on the pipeline's guider instead of its call."""
    known = inspect.signature(type(pipeline).__call__).parameters
    return "guidance_scale" not in known and bool(guiders_of(pipeline))


def check_samples(pipeline: DiffusionPipeline, samples: Iterable[Sample]) -> None:
    """Check that the pipeline takes the samples' conditions and gets all that it requires.

    Raises:
        ConfigError: a condition that is no argument of the pipeline or that the run sets; a condition that is missing,
            or that some samples have and others do not.
    """
    known = inspect.signature(type(pipeline).__call__).parameters
    needed = {name for name, each in known.items() if name != "self" and _is_required(name, each)}
    name = type(pipeline).__name__
    first: Sample | None = None
    for sample in samples:
        _check_conditions(sample, name, known)
        if missing := ", ".join(sorted(needed - sample.conditions.keys())):
            raise ConfigError(f"sample {sample.id!r} gives no {missing}, which {name} needs")
        first = first or sample
        for one, other in ((first, sample), (sample, first)):
            if odd := ", ".join(sorted(one.conditions.keys() - other.conditions.keys())):
                raise ConfigError(
                    f"sample {one.id!r} gives {odd}, and sample {other.id!r} does not: give it to all, or to none"
                )


def check_rows(pipeline: DiffusionPipeline, rows: int) -> None:
    """Check that the pipeline makes as many pictures or videos in a call.

    Raises:
        ConfigError: it makes one.
    """
    if rows > 1 and type(pipeline).__name__ in ONE_ROW:
        raise ConfigError(
            f"{type(pipeline).__name__} makes one picture or video per call, not {rows}: set data.micro_batch, and "
            "evaluation.batch, to 1 (or --batch)"
        )


def refused_call(pipeline: DiffusionPipeline, arguments: Mapping[str, Any], error: ValueError) -> CallRefused | None:
    """Return the error for a call whose arguments the pipeline's own checks refuse; None for errors of other code."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    if not str(frame.f_globals.get("__name__", "")).startswith("diffusers."):
        return None
    message = f"{type(pipeline).__name__} refuses the arguments of a call: {str(error).rstrip('.')}"
    taken = [each for each in inspect.signature(type(pipeline).__call__).parameters if media_kind(each)]
    if any(name in str(error) for name in taken):
        present = ", ".join(name for name in taken if name in arguments) or "none"
        message += f". It takes these pictures and videos: {', '.join(taken)}; the samples give {present}"
    return CallRefused(message)


def _is_required(name: str, argument: inspect.Parameter) -> bool:
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
            hint = did_you_mean(name, known, before=": ")
            raise ConfigError(f"sample {sample.id!r}: {name!r} is not an argument of {pipeline}{hint}; "
                              f"it takes these pictures and videos: {taken}")  # fmt: skip


def load_conditions(sample: Sample, copies: int | None, alpha: bool = False) -> dict[str, Any]:
    """Return a sample's conditions with PIL images and videos as lists of them; `copies` of each in a list."""

    def load(kind: MediaKind, path: str) -> Any:
        if is_video(kind, path):
            frames = load_video(path, sample.id)
            media: Any = [frame.convert("L") for frame in frames] if kind == "mask" else frames
        else:
            media = load_mask(path, sample.id) if kind == "mask" else load_image(path, sample.id, alpha)
        return media if copies is None else [media] * copies

    return map_media(sample.conditions, load)


def rows_of_conditions(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the conditions of samples that share a call: of images a list with one per row, of others one value.

    Raises:
        ValueError: the samples differ in a condition that is no image.
    """
    rows = [load_conditions(sample, 1) for sample in samples]
    joined: dict[str, Any] = {}
    for name, first in rows[0].items():
        if isinstance(first, list):
            joined[name] = [image for row in rows for image in row[name]]
        elif all(row[name] == first for row in rows):
            joined[name] = first
        else:
            raise ValueError(f"samples that differ in {name} need a separate call each")
    return joined


def _check_extra(name: str, pipeline: DiffusionPipeline, known: Any) -> None:
    if name in _SET_BY:
        raise ConfigError(f"sampling.pipeline_args.{name}: set {_SET_BY[name]} instead")
    if name in _OURS:
        raise ConfigError(f"sampling.pipeline_args.{name}: {_OURS[name]}")
    if name not in known or name == "self":
        wrong = f"sampling.pipeline_args.{name} is not an argument of {type(pipeline).__name__}"
        raise ConfigError(f"{wrong}{did_you_mean(name, known, before=': ')}")


COUNTS = ("num_images_per_prompt", "num_videos_per_prompt")
"""The names of the argument for the number of outputs per prompt."""

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

ROWS_APART = frozenset({"StableDiffusionInstructPix2PixPipeline", "StableDiffusionXLInstructPix2PixPipeline"})
"""Classes of `IMAGE_PER_ROW` whose rows were tested to be independent of one another's images."""

ONE_ROW = frozenset({"MotifVideoImage2VideoPipeline", "WanVACEPipeline"})
"""Classes of which a call makes one picture or video."""

PROMPT_AS_TEXT = frozenset({"WanVACEPipeline"})
"""Classes of `ONE_ROW` that take their prompt as a text, and no list of one."""

IMAGE_FOR_ALL = frozenset(
    {"ChronoEditPipeline", "LTX2ImageToVideoPipeline", "LTXImageToVideoPipeline", "SanaImageToVideoPipeline"}
)
"""Classes whose single image serves every row, while each row has a prompt."""

WITH_ALPHA = frozenset({"QwenImageLayeredPipeline"})
"""Classes that require images with four channels and convert none."""

SINGLE_GENERATOR = frozenset(
    {
        "Cosmos2_5_PredictBasePipeline",
        "HeliosPipeline",
        "LTX2ConditionPipeline",
        "LTX2ImageToVideoPipeline",
        "LTXImageToVideoPipeline",
        "WanVACEPipeline",
    }
)
"""Classes that take no list of random generators: a single one generates the noise of all rows, in order."""


@dataclass(frozen=True)
class BatchLayout:
    """The arguments by which one call requests several rows."""

    prompts: int  # the number of copies of the prompt
    count: str | None = None  # the argument that takes the number of rows; None: there are as many rows as prompts
    images: int | None = None  # the number of copies of each image; None: the image itself, not a list


def make_layout(pipeline: str, arguments: Container[str], rows: int, conditioned: bool) -> BatchLayout:
    """Return the layout for a class of this name with these arguments; `conditioned`: samples are not only prompts."""
    if not conditioned or pipeline in IMAGE_FOR_ALL:
        return BatchLayout(prompts=rows)
    count = next((name for name in COUNTS if name in arguments), None)
    if count is None or pipeline in IMAGE_PER_ROW:
        return BatchLayout(prompts=rows, images=rows)
    return BatchLayout(prompts=1, count=count)


UNLIMITED = 10**6  # tokens; transformers writes 1e30 where a tokenizer states no limit
SPECIAL = 8  # tokens around a prompt, at most
MAX_NAMED = 3  # prompts in the warning

logger = logging.getLogger(__name__)


def token_limits(pipeline: DiffusionPipeline, sampling: SamplingConfig) -> dict[str, int]:
    """Return the maximal number of tokens of each tokenizer with a text encoder, by component name.

    CLIP's limit is its number of positions; other encoders read `max_sequence_length` tokens, if the pipeline has that
    argument.
    """
    argument = inspect.signature(type(pipeline).__call__).parameters.get("max_sequence_length")
    requested = sampling.pipeline_args.get("max_sequence_length", argument.default if argument else None)
    most = requested if isinstance(requested, int) else None
    return {
        name: int(each.model_max_length) if most is None or isinstance(each, CLIPTokenizer) else most
        for name, each in _tokenizers(pipeline).items()
    }


def find_truncated_prompts(
    pipeline: DiffusionPipeline, sampling: SamplingConfig, samples: Iterable[Sample]
) -> tuple[dict[str, int], int]:
    """Return the length in tokens of each prompt that every text encoder truncates, by sample id, and the limit.

    A prompt that one encoder reads completely is not truncated: SD3's and Flux's T5 reads what their CLIP does not.
    """
    limits = token_limits(pipeline, sampling)
    if not limits or (most := max(limits.values())) >= UNLIMITED:
        return {}, UNLIMITED
    tokenizers = _tokenizers(pipeline)
    # a token is a byte or more
    candidates = {each.id: each.prompt for each in samples if len(each.prompt.encode()) + SPECIAL > most}
    lengths: dict[str, int] = {}  # in tokens of the encoder that reads the most
    for name in sorted(limits, key=lambda name: -limits[name]):
        if candidates:
            ids = tokenizers[name](list(candidates.values()), verbose=False).input_ids
            counts = dict(zip(candidates, map(len, ids), strict=True))
            lengths = counts | lengths
            candidates = {id: prompt for id, prompt in candidates.items() if counts[id] > limits[name]}
    return {id: lengths[id] for id in candidates}, most


def warn_truncated_prompts(pipeline: DiffusionPipeline, sampling: SamplingConfig, samples: list[Sample]) -> None:
    """Log one warning with the number of truncated prompts and the first of them, if there are any."""
    cut, most = find_truncated_prompts(pipeline, sampling, samples)
    if cut:
        first = ", ".join(f"{name!r} ({tokens} tokens)" for name, tokens in list(cut.items())[:MAX_NAMED])
        logger.warning(
            "%d of %d prompts are longer than the %d tokens that the text encoders read, and what is beyond has no "
            "effect on the pictures, though rewards see it: %s%s",
            len(cut), len(samples), most, first, ", ..." if len(cut) > MAX_NAMED else "",
        )  # fmt: skip


def _tokenizers(pipeline: DiffusionPipeline) -> Mapping[str, PreTrainedTokenizerBase]:
    """Return the tokenizers whose text encoder is loaded: `tokenizer_3` belongs to `text_encoder_3`."""
    return {
        name: component
        for name, component in pipeline.components.items()
        if isinstance(component, PreTrainedTokenizerBase)
        and pipeline.components.get(name.replace("tokenizer", "text_encoder"), component) is not None
    }
