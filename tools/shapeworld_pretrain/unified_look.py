"""Trains the embedded unified model on, until it looks better than it draws: a judge of what it draws itself.

It starts from the shipped weights. Half of the pictures are true ones, and half what it drew itself at the start, many
of them wrong; questions are about the whole caption, relations, numbers and attributes, and the rules answer them.
What it draws does not change: its distribution of codes is kept near that at the start (arXiv:1503.02531).
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import JanusForConditionalGeneration, PreTrainedTokenizerFast

from mmrl_shapeworld import unified_model
from mmrl_shapeworld.answered_captions import (
    NO,
    YES,
    PictureQuestion,
    count_question,
    relation_question,
    whole_question,
)
from mmrl_shapeworld.caption_mutations import mutations
from mmrl_shapeworld.captions import RELATIONS, SEEN_KINDS, Caption, Clause, related, sample_caption
from mmrl_shapeworld.checker import DIRT, read
from mmrl_shapeworld.scenes import SHAPES, Scene, Thing, thing_mask
from mmrl_shapeworld.shipped_models import UNIFIED
from tools.shapeworld_pretrain.image_ar import build_optimizers, world_codebook
from tools.shapeworld_pretrain.pictures import to_pictures
from tools.shapeworld_pretrain.steps import advance, set_rate_by_time
from tools.shapeworld_pretrain.unified import (
    MOST,
    SquareHints,
    answer_loss,
    caption_prompt,
    code_logits,
    drawings,
    drawn_codes,
    question_prompt,
    save,
    skills,
    square_hints,
)

DRAWN, ANSWERED = 8, 64
"""Captions and questions of a step."""
PLACES = 8
"""The columns and the rows in which the centre of a thing can lie."""
KEPT = 2.0
"""The weight of what is drawn staying as it was."""
SHARES = {"whole": 0.35, "relation": 0.3, "count": 0.25, "attribute": 0.1}
"""The share of each kind of question."""


@dataclass(frozen=True)
class SeenPictures:
    """Pictures as the codec shows them, with captions that need not be true, and what is in them."""

    captions: list[Caption]
    scenes: list[Scene]
    clean: list[bool]
    """True where a picture has nothing but things of a known shape."""
    pixels: Tensor  # [N, 3, 32, 32] in [-1, 1]
    codes: Tensor  # [N, 64] int64
    hints: Tensor  # [N, 64, 4] int64; in each square the kind of thing, how many there are of it, its column and row

    def __len__(self) -> int:
        return len(self.captions)


def true_pictures(model: JanusForConditionalGeneration, count: int, seed: int) -> SeenPictures:
    """Return pictures that are as their captions say."""
    data = drawings(count, seed, world_codebook())
    return _seen(model, data.captions, data.scenes, [True] * count, data.codes)


def own_pictures(model: JanusForConditionalGeneration, count: int, seed: int) -> SeenPictures:
    """Return what a model draws of random captions, as the checker reads it; things of no shape count as squares."""
    words, rng = unified_model.tokenizer(), np.random.default_rng(seed)
    named = [sample_caption(rng, SEEN_KINDS) for _ in range(count)]
    codes = torch.cat([drawn_codes(model, words, named[n : n + 128]) for n in range(0, count, 128)])
    with torch.no_grad():
        readings = [read(picture) for picture in to_pictures(_decoded(model, codes))]
    found = [Scene(tuple(Thing(t.colour, t.shape or SHAPES[1], t.x, t.y, t.side) for t in r.things)) for r in readings]
    clean = [r.dirt <= DIRT and all(t.shape for t in r.things) for r in readings]
    return _seen(model, named, found, clean, codes)


def _seen(
    model: JanusForConditionalGeneration, named: list[Caption], found: list[Scene], clean: list[bool], codes: Tensor
) -> SeenPictures:
    hints = torch.from_numpy(np.stack([_hints(scene) for scene in found]))
    return SeenPictures(named, found, clean, _decoded(model, codes), codes, hints)


@torch.no_grad()
def _decoded(model: JanusForConditionalGeneration, codes: Tensor) -> Tensor:
    return torch.cat([model.model.vqmodel.decode(each) for each in codes.split(128)]).clamp(-1, 1)


def _hints(scene: Scene) -> np.ndarray:
    centres = np.full((unified_model.SIDE,) * 2 + (2,), -100)
    for thing in scene.things:
        places = np.clip([thing.x * PLACES, thing.y * PLACES], 0, PLACES - 1).astype(int)
        centres[thing_mask(thing, unified_model.SIDE)] = places
    half = unified_model.PATCH // 2
    return np.concatenate([square_hints(scene), centres[half :: 2 * half, half :: 2 * half].reshape(-1, 2)], axis=1)


def seen_question(pictures: SeenPictures, row: int, kind: str, rng: np.random.Generator) -> PictureQuestion:
    """Return a random question of a kind about a picture, with the answer that the rules give."""
    caption, scene, clean = pictures.captions[row], pictures.scenes[row], pictures.clean[row]
    numbers = Counter((thing.colour, thing.shape) for thing in scene.things)
    if kind == "whole":
        others = mutations(caption, deepen=False)
        named = caption if rng.random() < 0.5 else others[rng.integers(len(others))]
        return PictureQuestion(whole_question(named), YES if clean and named.holds_for(scene) else NO)
    if kind == "relation" and len(caption.clauses) == 2:
        one, other = (caption.clauses[n] for n in rng.permutation(2))
        relation = str(rng.choice(RELATIONS))
        found = [[t for t in scene.things if each.fits(t.colour, t.shape, t.size)] for each in (one, other)]
        holds = any(related(a, b, relation) for a in found[0] for b in found[1])
        return PictureQuestion(relation_question(one, relation, other), YES if holds else NO)
    if kind == "attribute":
        shapes = {(each[1], each[0]) for each in numbers}
        candidates = [
            *((f"what shape is {c} ?", s) for c, s in numbers if sum(each[0] == c for each in numbers) == 1),
            *((f"what colour has the {s} ?", c) for s, c in shapes if sum(each[0] == s for each in shapes) == 1),
            *(
                (f"is there {replace(clause, size=size)} ?", YES if any(_fit(clause, size, scene)) else NO)
                for clause in caption.clauses
                if clause.count == 1
                for size in ("small", "large")
            ),
        ]
        if candidates:
            return PictureQuestion(*candidates[rng.integers(len(candidates))])
    known = [(clause.colour, clause.shape) for clause in caption.clauses]
    colour, shape = known[rng.integers(len(known))] if rng.random() < 0.7 else SEEN_KINDS[rng.integers(len(SEEN_KINDS))]
    return count_question(Clause(min(numbers[colour, shape], MOST), colour, shape))


def _fit(clause: Clause, size: str, scene: Scene) -> list[bool]:
    return [replace(clause, size=size).fits(thing.colour, thing.shape, thing.size) for thing in scene.things]


def look_on(
    model: JanusForConditionalGeneration,
    pictures: Sequence[SeenPictures],
    folder: Path,
    minutes: float,
    seed: int = 0,
    muon: float = 0.015,
    adamw: float = 2e-3,
) -> None:
    """Learn to answer about as many pictures of each collection, and save; rates end at zero."""
    words, rng = unified_model.tokenizer(), np.random.default_rng(900 + seed)
    before = copy.deepcopy(model).eval().requires_grad_(False)
    hints = SquareHints((PLACES, PLACES))
    model.model.vqmodel.requires_grad_(False)
    both = nn.ModuleList([model, hints])
    optimizers = build_optimizers(both, muon, adamw)
    started, step, spent = time.process_time(), 0, 0.0
    running: dict[str, float] = {}
    model.train()
    while spent < 1:
        spent = (time.process_time() - started) / (60 * minutes)
        set_rate_by_time(optimizers, step, spent, rise=30)
        own = pictures[-1]
        rows = torch.randint(len(own), (DRAWN,))
        kept = kept_drawing(model, before, words, [own.captions[row] for row in rows], own.codes[rows])
        (KEPT * kept).backward()
        questions, pixels, squares = [], [], []
        for each in pictures:
            rows = torch.randint(len(each), (ANSWERED // len(pictures),))
            kinds = rng.choice(list(SHARES), size=len(rows), p=list(SHARES.values()))
            questions += [seen_question(each, row, str(k), rng) for row, k in zip(rows.tolist(), kinds, strict=True)]
            pixels.append(each.pixels[rows])
            squares.append(each.hints[rows])
        answered, hint = answer_loss(model, words, hints, questions, torch.cat(pixels), torch.cat(squares))
        (answered + hint).backward()
        advance(optimizers, both)
        step += 1
        for name, loss in (("kept", kept), ("answers", answered), ("hints", hint)):
            running[name] = 0.95 * running.get(name, loss.item()) + 0.05 * loss.item()
        if step % 50 == 0:
            summary = " ".join(f"{name} {loss:.3f}" for name, loss in running.items())
            print(f"looking step {step} ({spent:.0%}) {summary}", flush=True)
        if step % 200 == 0:
            save(folder, model)
    save(folder, model.eval())


def kept_drawing(
    model: JanusForConditionalGeneration,
    before: JanusForConditionalGeneration,
    words: PreTrainedTokenizerFast,
    named: Sequence[Caption],
    codes: Tensor,
) -> Tensor:
    """Return the mean KL divergence [] of a model's chances of codes [B, 64] from those that it had before, in nats."""
    batch = words([caption_prompt(caption) for caption in named], padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted = code_logits(before, batch.input_ids, batch.attention_mask, codes).log_softmax(-1)
    found = code_logits(model, batch.input_ids, batch.attention_mask, codes).log_softmax(-1)
    return F.kl_div(found, wanted, log_target=True, reduction="none").sum(-1).mean()


@torch.no_grad()
def judgement(model: JanusForConditionalGeneration, pictures: SeenPictures, kind: str) -> dict[str, float]:
    """Return how well questions of a kind about pictures are answered, one about each.

    `right` is the share of right answers, the most likely ones; `often` that of the most frequent right answer; `auc`
    the probability that yes is more likely where it is right, of yes and no.
    """
    words, rng = unified_model.tokenizer(), np.random.default_rng(7)
    questions = [seen_question(pictures, row, kind, rng) for row in range(len(pictures))]
    logits = []
    for n in range(0, len(questions), 64):
        texts = [question_prompt(each) for each in questions[n : n + 64]]
        batch = words(texts, padding=True, return_tensors="pt")
        logits.append(model(**batch, pixel_values=pictures.pixels[n : n + 64]).logits[:, -1])
    scores = torch.cat(logits)
    true = torch.tensor(words.convert_tokens_to_ids([each.answer for each in questions]))
    yes, no = words.convert_tokens_to_ids([YES, NO])
    sure = scores[:, yes] - scores[:, no]
    above, below = sure[true == yes], sure[true == no]
    return {
        "right": (scores.argmax(-1) == true).float().mean().item(),
        "often": Counter(true.tolist()).most_common(1)[0][1] / len(true),
        "auc": (above[:, None] > below).float().mean().item() if len(above) and len(below) else float("nan"),
    }


def train(folder: Path, minutes: float = 20.0, seed: int = 0, pictures: int = 12_000, own: int = 4_000) -> None:
    """Train the shipped model on for a number of minutes of processor time, and save it."""
    torch.manual_seed(seed)
    model = JanusForConditionalGeneration.from_pretrained(UNIFIED, dtype=torch.float32).eval()
    unseen = {"true": true_pictures(model, 300, 911), "own": own_pictures(model, 400, 912)}
    print_judgements("before", model, unseen)
    look_on(model, [true_pictures(model, pictures, 901), own_pictures(model, own, 902)], folder, minutes, seed)
    model.eval()
    print_judgements("after", model, unseen)
    print("drawing:", skills(folder), flush=True)


def print_judgements(when: str, model: JanusForConditionalGeneration, unseen: dict[str, SeenPictures]) -> None:
    """Print how well questions of each kind are answered."""
    for name, pictures in unseen.items():
        for kind in SHARES:
            found = " ".join(f"{key} {value:.3f}" for key, value in judgement(model, pictures, kind).items())
            print(f"{when}, {name} pictures, {kind}: {found}", flush=True)
