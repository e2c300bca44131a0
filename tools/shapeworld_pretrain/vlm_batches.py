"""Batches for the warm start of the embedded VLM: what the processor and the vision tower do, only faster.

Pictures are all of one size and beginnings are all alike, so neither needs to be worked out row by row; tests hold
both ways against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    BaseModelOutputWithDeepstackFeatures,
    Qwen3VLVisionModel,
    apply_rotary_pos_emb_vision,
)

from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.vqa.canvas import FRAMES_PER_SECOND, PALETTE, PIXELS, Picture, blank, colours_of
from mmrl_shapeworld.vqa.questions import FRAMES, NAMES, Question
from tools.shapeworld_pretrain.vlm_hints import targets

GRID = PIXELS // vlm_model.PATCH
_SCALED = torch.from_numpy(PALETTE).float() / 127.5 - 1


@dataclass(frozen=True)
class Batch:
    """Questions with their answers, padded behind."""

    ids: Tensor  # [B, T] int64
    positions: Tensor  # [3, B, T] int64; where a token stands in time, height and width
    patches: Tensor | None  # [B · pictures, patches, values]
    hints: tuple[Tensor, Tensor] | None  # see `vlm_hints.targets`
    answered: Tensor  # [B, T] bool; tokens of the answers, which are what is learnt


@dataclass(frozen=True)
class ChatParts:
    """The ids around the texts of a chat in which each of the user's turns has a picture."""

    before: list[int]  # the question
    between: list[int]  # the question and the first answer
    after: list[int]  # an answer and the next one, with the answer's end token and the next picture
    grid: Tensor  # [1, 3], of a picture


def chat_parts(processor: Qwen3VLProcessor) -> ChatParts:
    """Return what the processor writes around the texts of a chat, found with "?" in their places."""
    image = {"type": "image"}
    text = processor.apply_chat_template(
        [
            {"role": "user", "content": [image, {"type": "text", "text": "?"}]},
            {"role": "assistant", "content": "?"},
            {"role": "user", "content": [image]},
        ],
        add_generation_prompt=True,
    )
    picture = Image.new("RGB", (PIXELS, PIXELS))
    inputs = processor(text=[text], images=[picture, picture], return_tensors="pt")
    ids, mark = inputs["input_ids"][0].tolist(), processor.tokenizer.convert_tokens_to_ids("?")
    first = ids.index(mark)
    second = ids.index(mark, first + 1)
    return ChatParts(ids[:first], ids[first + 1 : second], ids[second + 1 :], inputs["image_grid_thw"][:1])


class BatchBuilder:
    """Makes batches as the processor would, only faster: pictures are all of one size, and beginnings are all alike."""

    def __init__(
        self,
        model: Qwen3VLForConditionalGeneration,
        processor: Qwen3VLProcessor,
        names: Sequence[str] = NAMES,  # of what regions show, for the hints
    ) -> None:
        self.model, self.words, self.names = model, processor.tokenizer, names
        self.kinds: dict[int, tuple[list[int], list[int], Mapping[str, Tensor]]] = {}
        for frames in (0, 1, FRAMES):
            inputs = processed(processor, [Question("?", "", "", "", (blank(),) * frames)])
            ids = inputs["input_ids"][0].tolist()
            mark = ids.index(self.words.convert_tokens_to_ids("?"))
            self.kinds[frames] = ids[:mark], ids[mark + 1 :], inputs

    def batch(self, questions: Sequence[Question], answers: Sequence[str]) -> Batch:
        """Batch questions with equally many frames (0, 1 or more) with their answers."""
        frames = len(questions[0].frames)
        before, after, _ = self.kinds[frames]
        prompts = self.words([question.prompt for question in questions]).input_ids
        answer_ids = self.words(list(answers)).input_ids
        end = self.words.eos_token_id
        rows = [[*before, *p, *after, *a, end] for p, a in zip(prompts, answer_ids, strict=True)]
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self.words.pad_token_id)
        answered = torch.zeros(len(rows), length, dtype=torch.bool)
        for number, (row, answer) in enumerate(zip(rows, answer_ids, strict=True)):
            ids[number, : len(row)] = torch.tensor(row)
            answered[number, len(row) - len(answer) - 1 : len(row)] = True
        patches = to_patches([question.frames for question in questions]) if frames else None
        hints = targets(questions, self.names) if frames else None
        return Batch(ids, self._positions(frames, length, len(rows)), patches, hints, answered)

    def _positions(self, frames: int, length: int, rows: int) -> Tensor:
        """Equal for all rows, since what differs is text, which comes after all pictures."""
        before, _, inputs = self.kinds[frames]
        types = torch.zeros(1, length, dtype=torch.int)
        types[0, : len(before)] = inputs["mm_token_type_ids"][0, : len(before)]
        grids = {name: inputs[name] for name in ("image_grid_thw", "video_grid_thw") if name in inputs}
        positions, _ = self.model.model.get_rope_index(torch.zeros(1, length, dtype=torch.long), types, **grids)
        return positions.expand(3, rows, length)


def look(
    visual: Qwen3VLVisionModel,
    patches: Tensor,  # [N, 64, values]
) -> BaseModelOutputWithDeepstackFeatures:
    """Return the outputs of `visual` for a batch of 56×56 pictures, which `visual` itself takes one at a time."""
    heads = visual.config.num_heads
    squares = torch.arange(GRID * GRID).view(GRID // 2, 2, GRID // 2, 2).permute(0, 2, 1, 3).flatten()
    states = visual.patch_embed(patches.flatten(0, 1)).view(len(patches), GRID * GRID, -1)
    states = states + visual.pos_embed.weight[squares]
    places = torch.stack([squares // GRID, squares % GRID], dim=-1)
    cos, sin = visual.rotary_pos_emb(states, places)
    deep: list[Tensor] = []
    for number, block in enumerate(visual.blocks):
        qkv = block.attn.qkv(block.norm1(states)).unflatten(-1, (3, heads, -1))
        q, k, v = qkv.unbind(2)  # [N, 64, heads, width] each
        q, k = apply_rotary_pos_emb_vision(q, k, cos, sin)
        mixed = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
        states = states + block.attn.proj(mixed.transpose(1, 2).flatten(2))
        states = states + block.mlp(block.norm2(states))
        if number in visual.deepstack_visual_indexes:
            deep.append(visual.deepstack_merger_list[len(deep)](states.flatten(0, 1)))
    merged = visual.merger(states.flatten(0, 1))
    return BaseModelOutputWithDeepstackFeatures(pooler_output=(merged,), deepstack_features=[(each,) for each in deep])


def to_patches(
    clips: Sequence[Sequence[Picture]],  # of one length, which is 1 or even
) -> Tensor:  # [N · pairs of frames, 64, 3 · 2 · 49]
    """Return pictures and clips as processors prepare them: pairs of frames in squares; single frames count twice."""
    return in_patches(_SCALED[torch.from_numpy(np.stack([np.stack(clip) for clip in clips])).long()])


def in_patches(frames: Tensor) -> Tensor:  # [N, F, 56, 56, 3] in [-1, 1] -> [N · pairs of frames, 64, 3 · 2 · 49]
    """Return frames cut into patches, as processors prepare them; single frames count twice."""
    if frames.shape[1] == 1:
        frames = frames.repeat(1, 2, 1, 1, 1)
    half = GRID // vlm_model.MERGE
    cut = frames.reshape(-1, 2, half, vlm_model.MERGE, vlm_model.PATCH, half, vlm_model.MERGE, vlm_model.PATCH, 3)
    return cut.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(len(cut), GRID * GRID, -1)


def processed(processor: Qwen3VLProcessor, questions: Sequence[Question]) -> Mapping[str, Tensor]:
    """Questions of one kind as the processor gives them to the model, ready for an answer, padded in front."""
    texts = []
    for question in questions:
        kinds = ["image" if len(question.frames) == 1 else "video"] if question.frames else []
        content = [*({"type": kind} for kind in kinds), {"type": "text", "text": question.prompt}]
        texts.append(processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True))
    frames = len(questions[0].frames)
    media: dict[str, Any] = {}
    if frames == 1:
        media["images"] = [Image.fromarray(colours_of(question.frames[0])) for question in questions]
    elif frames:
        media["videos"] = [
            torch.from_numpy(colours_of(np.stack(question.frames))).permute(0, 3, 1, 2) for question in questions
        ]
        about = {"fps": FRAMES_PER_SECOND, "total_num_frames": frames, "frames_indices": list(range(frames))}
        media |= {"video_metadata": [dict(about) for _ in questions], "do_sample_frames": False}
    return processor(text=texts, return_tensors="pt", padding=True, **media)
