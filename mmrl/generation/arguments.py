"""From a sampling configuration to the arguments of a pipeline's `__call__`, checked against its signature."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import Any

from diffusers import DiffusionPipeline

from mmrl.config.sampling import SamplingConfig
from mmrl.config.section import ConfigError

_SET_BY = {
    "num_inference_steps": "sampling.steps",
    "guidance_scale": "sampling.guidance_scale",
    "height": "sampling.height",
    "width": "sampling.width",
    "num_frames": "sampling.num_frames",
    "negative_prompt": "sampling.negative_prompt",
    "eta": "sampling.transition.noise_level",
}
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


def call_arguments(pipeline: DiffusionPipeline, sampling: SamplingConfig, prompts: list[str]) -> dict[str, Any]:
    """Keywords for `pipeline(...)`, one row a prompt; generators are the caller's to add.

    Raises:
        ConfigError: an argument that this pipeline does not take, or that is set elsewhere.
    """
    known = inspect.signature(type(pipeline).__call__).parameters
    chosen: dict[str, Any] = {
        "num_inference_steps": sampling.steps,
        "guidance_scale": sampling.guidance_scale,
        "height": sampling.height,
        "width": sampling.width,
        "num_frames": sampling.num_frames,
        "negative_prompt": None if sampling.negative_prompt is None else [sampling.negative_prompt] * len(prompts),
    }
    arguments = {name: value for name, value in chosen.items() if value is not None}
    for name in arguments:
        if name not in known:
            raise ConfigError(f"{_SET_BY[name]}: {type(pipeline).__name__} takes no {name}")
    for name, value in sampling.pipeline_args.items():
        _check_extra(name, pipeline, known)
        arguments[name] = value
    arguments["prompt"] = prompts
    if "output_type" in known:
        arguments["output_type"] = "pil"
    return arguments


def _check_extra(name: str, pipeline: DiffusionPipeline, known: Any) -> None:
    if name in _SET_BY:
        raise ConfigError(f"sampling.pipeline_args.{name}: set {_SET_BY[name]} instead")
    if name in _OURS:
        raise ConfigError(f"sampling.pipeline_args.{name}: {_OURS[name]}")
    if name not in known or name == "self":
        near = get_close_matches(name, known, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise ConfigError(f"sampling.pipeline_args.{name} is not an argument of {type(pipeline).__name__}{hint}")
