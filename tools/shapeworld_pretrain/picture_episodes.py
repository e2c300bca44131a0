"""Teaches the VLM of the worlds whole episodes in which each action follows a picture, on all turns at once.

Each picture is learnt from directly, too, as in `tools.shapeworld_pretrain.vlm_hints`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.vqa.canvas import Picture
from mmrl_shapeworld.vqa.questions import Question, Region
from tools.shapeworld_pretrain.steps import advance, set_rate_by_time
from tools.shapeworld_pretrain.vlm import build_optimizers
from tools.shapeworld_pretrain.vlm_batches import chat_parts, look, to_patches
from tools.shapeworld_pretrain.vlm_hints import Hints, targets


@dataclass(frozen=True)
class PictureTurn:
    """A picture, what it shows and where, the action that follows it, and whether the action is learnt."""

    picture: Picture
    regions: tuple[Region, ...]
    action: str
    is_learnt: bool


@dataclass(frozen=True)
class PictureEpisode:
    """An episode, whose first picture stands in the prompt."""

    prompt: str
    turns: tuple[PictureTurn, ...]


class PictureRows:
    """The losses of episodes, with ids and pictures as the processor and the environment make them."""

    def __init__(self, model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor) -> None:
        self.model, self.words = model, processor.tokenizer
        self.chat = chat_parts(processor)

    def loss(self, rows: Sequence[PictureEpisode], hints: Hints) -> tuple[Tensor, Tensor]:
        """Return the mean loss of the tokens of all actions that are learnt, and that of the hints."""
        ids, learnt = self._ids(rows)
        turns = [turn for row in rows for turn in row.turns]
        questions = [Question("", "", "", "", (), {}, (turn.regions,)) for turn in turns]
        seen = look(self.model.model.visual, to_patches([(turn.picture,) for turn in turns]))
        hint = hints(seen.pooler_output[0], *targets(questions, hints.names))
        positions, _ = self.model.model.get_rope_index(
            ids,
            (ids == self.model.config.image_token_id).int(),
            image_grid_thw=self.chat.grid.expand(len(turns), 3),
            attention_mask=(ids != self.words.pad_token_id).long(),
        )
        states = self.model.model(
            input_ids=ids, position_ids=positions, mm_encoder_outputs={"image": seen}, use_cache=False
        ).last_hidden_state
        predicting = learnt[:, 1:]
        return F.cross_entropy(self.model.lm_head(states[:, :-1][predicting]), ids[:, 1:][predicting]), hint

    def _ids(self, rows: Sequence[PictureEpisode]) -> tuple[Tensor, Tensor]:  # [B, T] int64, [B, T] bool
        end = self.words.eos_token_id
        found = []
        for row in rows:
            ids = [*self.chat.before, *self.words(row.prompt).input_ids, *self.chat.between]
            learnt = [False] * len(ids)
            for number, turn in enumerate(row.turns):
                inserted = self.chat.after[1:] if number else []  # the end token of the turn before is there
                own = [*self.words(turn.action).input_ids, end]
                ids += [*inserted, *own]
                learnt += [False] * len(inserted) + [turn.is_learnt] * len(own)
            found.append((ids, learnt))
        longest = max(len(ids) for ids, _ in found)
        batch = torch.full((len(rows), longest), self.words.pad_token_id)
        chosen = torch.zeros(len(rows), longest, dtype=torch.bool)
        for number, (ids, learnt) in enumerate(found):
            batch[number, : len(ids)], chosen[number, : len(ids)] = torch.tensor(ids), torch.tensor(learnt)
        return batch, chosen


def learn_episodes(
    drawn: Callable[[float], Sequence[PictureEpisode]],
    folder: Path,
    minutes: float,
    source: Path,
    names: Sequence[str],
    seed: int = 0,
    muon: float = 0.015,
    adamw: float = 2e-3,
) -> None:
    """Train for a number of minutes of processor time, and save model and processor.

    Args:
        drawn: the episodes of a step, from the share of the time that is spent.
        folder: the place of the trained model.
        minutes: the processor time.
        source: the folder of the model to go on from.
        names: the names that regions may have.
        seed: of the auxiliary layers.
        muon: the learning rate of matrices, which falls to zero.
        adamw: that of all other parameters.
    """
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration.from_pretrained(source)
    processor = vlm_model.processor(of_worlds=True)
    processor.save_pretrained(folder)
    batches, hints = PictureRows(model, processor), Hints(vlm_model.VLMSize().width, names)
    optimizers = build_optimizers(nn.ModuleList([model, hints]), muon, adamw)
    running: dict[str, float] = {}
    started, step, spent = time.process_time(), 0, 0.0
    model.train()
    while spent < 1:
        spent = (time.process_time() - started) / (60 * minutes)
        set_rate_by_time(optimizers, step, spent)
        loss, hint = batches.loss(drawn(spent), hints)
        (loss + 0.5 * hint).backward()
        advance(optimizers, model)
        step += 1
        for name, value in (("actions", loss.item()), ("hints", hint.item())):
            running[name] = 0.95 * running.get(name, value) + 0.05 * value
        if step % 20 == 0:
            summary = " ".join(f"{name} {value:.3f}" for name, value in running.items())
            print(f"{folder.name} step {step} ({spent:.0%}) {summary}", flush=True)
            model.save_pretrained(folder)
    model.eval().save_pretrained(folder)
