"""Prompts that no text encoder of a pipeline reads to the end. diffusers cuts them; here they are counted and named."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping

from diffusers import DiffusionPipeline
from transformers import CLIPTokenizer, PreTrainedTokenizerBase

from mmrl.config.sampling import SamplingConfig
from mmrl.data.sample import Sample

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


def cut_prompts(
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


def report_cut_prompts(pipeline: DiffusionPipeline, sampling: SamplingConfig, samples: list[Sample]) -> None:
    """Warn once, with the number of prompts that are cut and the first of them."""
    cut, most = cut_prompts(pipeline, sampling, samples)
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
