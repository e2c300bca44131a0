"""A causal language model of transformers that generates images scale by scale, coarse to fine, in one folder.

    next_scale.json       {"scales": [[1, 1], [2, 2], [4, 4]], "first_code": 27, "first_place": 539, "start": 2}
    language_model/, tokenizer/, vqvae/ or patches.safetensors    as `vq_causal_lm` has them

`scales` has the rows and columns of each scale. A scale is the whole picture at its resolution, encoded by the same
codec; all of its codes are drawn at once. The input of a code is the embedding of its place, token `first_place` + p
for place p over all scales, plus those of the codes at this place in all coarser scales. `policy.size` draws coarser
pictures: the scales up to the one of this height and width.

Visual autoregressive modelling, arXiv:2404.02905, as the generator of VARGPT-v1.1, arXiv:2504.02949. Differs: a scale
is a picture by itself, where theirs is what the coarser ones leave over; places have learned embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn

from mmrl.config.policy import ImageTokenConfig
from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.codecs import ImageCodec
from mmrl.generation.image_tokens.image_token_model import SnippetRequest, quote
from mmrl.generation.image_tokens.vq_causal_lm import VQCausalLM, VQCausalLMSpec, check_whole, read_json

SCALES_FILE = "next_scale.json"


@dataclass(frozen=True)
class NextScaleSpec(VQCausalLMSpec):
    """The content of `next_scale.json`; rows and columns are those of the finest scale that is drawn."""

    first_place: int
    scales: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, path: Path) -> NextScaleSpec:
        """Read the file; raise ConfigError with its name and the key if it is not valid."""
        content = read_json(path)
        keys = {"scales", "first_code", "first_place", "start"}
        if not isinstance(content, dict) or set(content) != keys:
            raise ConfigError(f"{path}: expected a map with the keys {', '.join(sorted(keys))}")
        scales = content.pop("scales")
        if not (isinstance(scales, list) and scales and all(map(_is_grid, scales))):
            raise ConfigError(f"{path}: scales must be pairs of rows and columns, as in [[1, 1], [2, 2]]")
        for key, number in content.items():
            check_whole(path, key, number, least=0)
        return cls(rows=scales[-1][0], columns=scales[-1][1], scales=tuple(map(tuple, scales)), **content)

    def write(self, path: Path) -> None:
        """Write the file that `read` reads."""
        numbers = {"first_code": self.first_code, "first_place": self.first_place, "start": self.start}
        path.write_text(json.dumps({"scales": self.scales, **numbers}, indent=2) + "\n", encoding="utf-8")


def _is_grid(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(each) is int and each >= 1 for each in value)


class NextScaleLM(VQCausalLM):
    """A language model that draws all codes of a scale at once, after those of all coarser scales."""

    spec_file: ClassVar[str] = SCALES_FILE
    _spec: NextScaleSpec

    def __init__(self, network: Any, tokenizer: Any, codec: ImageCodec, spec: NextScaleSpec) -> None:
        """
        Raises:
            ConfigError: the vocabulary is smaller than the codes or the places need.
        """
        super().__init__(network, tokenizer, codec, spec)
        end = (spec.rows, spec.columns)
        self.scales = spec.scales[: spec.scales.index(end) + 1]
        places = sum(rows * columns for rows, columns in spec.scales)
        vocabulary = network.get_input_embeddings().num_embeddings
        if spec.first_place + places > vocabulary:
            raise ConfigError(
                f"{SCALES_FILE}: places are tokens {spec.first_place} to {spec.first_place + places - 1}, but the "
                f"language model has {vocabulary} tokens"
            )

    @classmethod
    def spec_of(cls, folder: Path, config: ImageTokenConfig, codec: ImageCodec) -> NextScaleSpec:
        spec = NextScaleSpec.read(folder / SCALES_FILE)
        if config.size is None:
            return spec
        pictures = [codec.decode(torch.zeros(1, *scale, dtype=torch.long))[0] for scale in spec.scales]
        sizes = [(picture.height, picture.width) for picture in pictures]
        if config.size not in sizes:
            known = ", ".join(f"[{height}, {width}]" for height, width in sizes)
            raise ConfigError(f"policy.size: {config.model} draws {known}, not {list(config.size)}")
        rows, columns = spec.scales[sizes.index(config.size)]
        return replace(spec, rows=rows, columns=columns)

    def embed_scale(self, codes: Tensor, scale: int) -> Tensor:
        rows, columns = self.scales[scale]
        before = sum(r * c for r, c in self.scales[:scale])
        first = self._spec.first_place + before
        embeds = self.embed_text(torch.arange(first, first + rows * columns, device=codes.device))[None]
        embeds = embeds.expand(len(codes), -1, -1)
        for grid, part in zip(self.scales[:scale], self._by_scale(codes, scale), strict=True):
            embeds = embeds + self.embed_codes(_repeated(part.view(-1, *grid), rows, columns))
        return embeds

    def decode(self, codes: Tensor) -> list[Image.Image]:
        return super().decode(self._by_scale(codes, len(self.scales))[-1])

    def encode(self, images: Sequence[Image.Image]) -> Tensor:
        return torch.cat([self._codec.encode(images, *scale).flatten(1) for scale in self.scales], dim=1)

    def pixel_decoder(self) -> nn.Module:
        """
        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "models: the decoder of a next_scale_lm is not trained: leave the model with head: pixels out"
        )

    def snippet(self, request: SnippetRequest) -> str:
        codec, sampling = self._codec.snippet(), request.sampling
        guided = sampling.guidance_scale != 1
        texts = [request.prompt, sampling.negative_prompt or ""] if guided else [request.prompt]
        warpers = [f"TopKLogitsWarper({sampling.top_k})"] if sampling.top_k else []
        warpers += [f"TopPLogitsWarper({sampling.top_p})"] if sampling.top_p < 1 else []
        mixed = f"scores[1] + {sampling.guidance_scale} * (scores[0] - scores[1])" if guided else "scores[0]"
        if not sampling.temperature:
            warpers, chosen = [], "scores.argmax(-1)"
        else:
            mixed = f"({mixed}) / {sampling.temperature}"
            chosen = "torch.multinomial(torch.softmax(scores, dim=-1), 1)[:, 0]"
        names = sorted(["AutoModelForCausalLM", "AutoTokenizer", *(each.partition("(")[0] for each in warpers)])
        return "\n".join(
            [
                "import json",
                "from pathlib import Path",
                "",
                "import torch",
                *sorted([codec.library, "from PIL import Image", f"from transformers import {', '.join(names)}"]),
                "",
                f"folder = {quote(request.folder)}",
                f'spec = json.loads(Path(folder, "{SCALES_FILE}").read_text())',
                'first, place = spec["first_code"], spec["first_place"]',
                'language_model = f"{folder}/language_model"',
                f"model = AutoModelForCausalLM.from_pretrained(language_model, dtype=torch.{request.dtype})",
                'tokenizer = AutoTokenizer.from_pretrained(f"{folder}/tokenizer")',
                *codec.load,
                f"texts = [{', '.join(map(quote, texts))}]",
                'prompts = [torch.tensor([[*tokenizer(text)["input_ids"], spec["start"]]]) for text in texts]',
                "caches = [model(ids, use_cache=True).past_key_values for ids in prompts]",
                "table, grids = model.get_input_embeddings(), []",
                f'for rows, columns in spec["scales"][:{len(self.scales)}]:',
                "    embeds = table(torch.arange(place, place + rows * columns))",
                "    for grid in grids:",
                "        row = torch.arange(rows) * len(grid) // rows",
                "        column = torch.arange(columns) * grid.shape[1] // columns",
                "        embeds = embeds + table(first + grid[row][:, column].flatten())",
                "    scores = []",
                "    for cache in caches:",
                "        seen = torch.ones(1, 1, len(embeds), cache.get_seq_length() + len(embeds), dtype=torch.bool)",
                "        logits = model(inputs_embeds=embeds[None], attention_mask=seen, past_key_values=cache).logits",
                f"        scores.append(logits[0, :, first : first + {codec.count}].detach().float())",
                f"    scores = {mixed}",
                *(f"    scores = {each}(None, scores)" for each in warpers),
                f"    grids.append({chosen}.view(rows, columns))",
                "    place += rows * columns",
                "codes = grids[-1]",
                *codec.decode,
            ]
        )

    def _by_scale(self, codes: Tensor, count: int) -> list[Tensor]:
        """Return codes [B, K] of the first scales as one [B, n] for each."""
        return list(codes.split([rows * columns for rows, columns in self.scales[:count]], dim=1))


def _repeated(codes: Tensor, rows: int, columns: int) -> Tensor:
    """Return [B, rows * columns]: for each place of a grid, the code at this place in a coarser one [B, r, c]."""
    row = torch.arange(rows, device=codes.device) * codes.shape[1] // rows
    column = torch.arange(columns, device=codes.device) * codes.shape[2] // columns
    return codes[:, row][:, :, column].flatten(1)
