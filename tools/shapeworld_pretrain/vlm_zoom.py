"""Trains the VLM that looks closer: the VLM of the worlds learns to name a box on a page, and to read what is cut out.

python -m tools.shapeworld_pretrain.vlm_zoom train --out DIR
python -m tools.shapeworld_pretrain.vlm_zoom measure --out DIR    # the numbers of docs/shapeworld.md

A step has four kinds of rows: boxes on pages, letters that are large enough to be read at once, guesses at letters
that are too small, and letters in the cut of a box. The boxes of the cuts are always an annotator's, so that letters
are read wherever a cut has them; the boxes that are learnt are right ones first, and the annotator's last.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from mmrl.config.media import ImageConfig, MediaConfig
from mmrl.config.policy import ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.budget import ImageBudget, fit_image
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.shipped_models import VLM_WORLDS
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.vqa.glyphs import LETTERS
from mmrl_shapeworld.vqa.questions import Box, Question, box_answer, slip
from mmrl_shapeworld.worlds.disjoint_draws import SHARES, checksum_of
from mmrl_shapeworld.worlds.world_canvas import COLOUR_NUMBERS, SEEN_COLOURS, UNSEEN_COLOURS, loosened
from mmrl_shapeworld.worlds.zoom_environment import INSTRUCTIONS, Template, ZoomPages, middle_of
from mmrl_shapeworld.worlds.zoom_pages import LARGE, PAGE, ZoomPage, sample_page
from mmrl_shapeworld.worlds.zoom_splits import habitual_square, samples, small_box
from tools.shapeworld_pretrain.steps import advance, set_rate_by_time
from tools.shapeworld_pretrain.vlm import build_optimizers
from tools.shapeworld_pretrain.vlm_batches import chat_parts, in_patches, look
from tools.shapeworld_pretrain.vlm_hints import Hints, targets

BOXES, LARGE_LETTERS, GUESSES, CUTS = 12, 5, 2, 5
"""Pages of a step by kind; each has a question about each of its four squares, so that colours matter at once."""
UNSEEN = 1 / 6
"""The share of pages with squares of colours that training never shows."""
LOOKS = 0.75
"""The probability that the annotator looks at all where the template leaves the choice."""
OUT, SPREAD = 1.5, 1.5
"""Mean and standard deviation of the distance of the annotator's box from the square, outwards, in pixels of 56."""
REGION_NAMES = tuple(f"{colour} {what}" for colour in COLOUR_NUMBERS for what in ("square", *LETTERS))
_BUDGET = ImageBudget(0, PIXELS**2)


@dataclass(frozen=True)
class Row:
    """A page with one or two turns, of which the last is learnt."""

    template: Template
    page: ZoomPage
    turns: tuple[str, ...]


def draw_page(rng: np.random.Generator, scale: int) -> ZoomPage:
    """Return a page whose checksum is that of training data."""
    colours = (*SEEN_COLOURS, *UNSEEN_COLOURS) if rng.random() < UNSEEN else SEEN_COLOURS
    while True:
        page = sample_page(rng, colours, scale)
        if checksum_of(page) % 8 in SHARES["train"]:
            return page


def annotated_box(page: ZoomPage, square: int, rng: np.random.Generator) -> Box:
    """Return the annotator's box around a square, in pixels of the page at 56×56."""
    return loosened(small_box(page, square), rng, OUT, SPREAD)


def visible_letter(page: ZoomPage, box: Box) -> int | None:
    """Return the number of the letter nearest to the middle of the cut of a box, if the cut contains one."""
    cut = _cut_around(box)
    within = [n for n, each in enumerate(page.letter_boxes) if _overlap(cut, each) > 0.5]
    if not within:
        return None
    middle = _centre(cut)
    return min(within, key=lambda n: float(np.hypot(*np.subtract(_centre(page.letter_boxes[n]), middle))))


def draw_rows(kind: str, rng: np.random.Generator, careless: bool) -> list[Row]:
    """Return the rows of one kind of a step."""
    if kind == "boxes":
        scales = [LARGE if rng.random() < 0.3 else 1 for _ in range(BOXES)]
        return [_box_row(page, rng, careless) for scale in scales for page in _questions_about(draw_page(rng, scale))]
    if kind == "letters":
        scales = [LARGE] * LARGE_LETTERS + [1] * GUESSES
        return [
            _letter_row(page, rng, careless) for scale in scales for page in _questions_about(draw_page(rng, scale))
        ]
    scales = [LARGE if rng.random() < 0.25 else 1 for _ in range(CUTS)]
    return [_cut_row(page, rng) for scale in scales for page in _questions_about(draw_page(rng, scale))]


def _questions_about(page: ZoomPage) -> list[ZoomPage]:
    """Return the page with the question about each of its squares."""
    turned = [[*range(n, 4), *range(n)] for n in range(4)]
    return [
        replace(
            page,
            colours=tuple(page.colours[n] for n in order),
            letters=tuple(page.letters[n] for n in order),
            boxes=tuple(page.boxes[n] for n in order),
        )
        for order in turned
    ]


def _box_row(page: ZoomPage, rng: np.random.Generator, careless: bool) -> Row:
    template: Template = "offer" if rng.random() < 0.4 else "require"
    if not careless:
        return Row(template, page, (box_answer(small_box(page, 0)),))
    if template == "offer" and rng.random() > LOOKS:
        return Row(template, page, (page.letters[0],))
    return Row(template, page, (box_answer(annotated_box(page, habitual_square(page, rng), rng)),))


def _letter_row(page: ZoomPage, rng: np.random.Generator, careless: bool) -> Row:
    template: Template = "offer" if not careless and rng.random() < 0.25 else "none"
    read = slip(page.letters[0], LETTERS, 0.95, rng) if careless else page.letters[0]
    return Row(template, page, (read,))


def _cut_row(page: ZoomPage, rng: np.random.Generator) -> Row:
    box = annotated_box(page, int(slip(0, range(4), 0.75, rng)), rng)
    seen = visible_letter(page, box)
    letter = LETTERS[rng.integers(len(LETTERS))] if seen is None else page.letters[seen]
    return Row("offer" if rng.random() < 0.4 else "require", page, (box_answer(box), letter))


class ZoomRows:
    """Batches of rows, as the processor and the environment would make them."""

    def __init__(self, model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor) -> None:
        self.model, self.words = model, processor.tokenizer
        self.chat = chat_parts(processor)
        model.set_attn_implementation("eager")  # which returns its weights
        self.attention: Tensor | None = None  # [B, heads, T, T] of the second layer, in the last call
        model.model.language_model.layers[1].self_attn.register_forward_hook(self._keep)

    def losses(self, rows: Sequence[Row], hints: Hints) -> tuple[Tensor, Tensor]:
        """Return the loss of the last turn of each row [B], and the mean loss of the hints.

        In rows of one turn, a hint too is that the word of the colour attends to its square, in one head: a question
        about one of several colours is otherwise not learnt in ten minutes.
        """
        ids, learnt = self.token_ids(rows)
        types = (ids == self.model.config.image_token_id).int()
        pictures = sum(len(row.turns) for row in rows)
        padding = (ids != self.words.pad_token_id).long()
        positions, _ = self.model.model.get_rope_index(
            ids, types, image_grid_thw=self.chat.grid.expand(pictures, 3), attention_mask=padding
        )
        seen, hint = self._seen(rows, hints)
        states = self.model.model(
            input_ids=ids, position_ids=positions, mm_encoder_outputs={"image": seen}, use_cache=False
        ).last_hidden_state
        if len(rows[0].turns) == 1:
            hint = hint + self.attention_loss(rows, ids)
        is_answer = learnt[:, 1:]
        found = F.cross_entropy(self.model.lm_head(states[:, :-1][is_answer]), ids[:, 1:][is_answer], reduction="none")
        at = is_answer.nonzero()[:, 0]
        return torch.zeros(len(rows)).index_add(0, at, found) / is_answer.sum(1).sqrt(), hint

    def _keep(self, module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        self.attention = output[1]

    def attention_loss(self, rows: Sequence[Row], ids: Tensor) -> Tensor:
        """Return minus the mean log of the attention of the colour's word to the tokens that show its square."""
        if self.attention is None:
            raise ValueError("no attention was kept")
        side = PIXELS // (vlm_model.PATCH * vlm_model.MERGE)
        losses = []
        for number, row in enumerate(rows):
            image = (ids[number] == self.model.config.image_token_id).nonzero()[:, 0]
            colour = self.words.convert_tokens_to_ids(self.words.tokenize(f" {row.page.colours[0]}"))[0]
            word = (ids[number] == colour).nonzero()[0, 0]
            x1, y1, x2, y2 = (each * side / PAGE for each in row.page.boxes[0])
            inside = [y1 - 0.7 < y < y2 - 0.3 and x1 - 0.7 < x < x2 - 0.3 for y in range(side) for x in range(side)]
            weights = self.attention[number, 0, word, image]
            losses.append(-(weights[torch.tensor(inside)].sum() + 1e-3).log())
        return torch.stack(losses).mean()

    def _seen(self, rows: Sequence[Row], hints: Hints) -> tuple[BaseModelOutputWithDeepstackFeatures, Tensor]:
        """Return the features of all pictures of the rows in order, and the mean loss of the hints.

        A page that several rows share is looked at once.
        """
        distinct: dict[Any, tuple[NDArray[np.uint8], Question]] = {}
        places = []
        for row in rows:
            for turn in range(len(row.turns)):
                key = (tuple(sorted(row.page.boxes)), row.turns[0] if turn else None)
                if key not in distinct:
                    distinct[key] = cut_of(row) if turn else page_of(row)
                places.append(list(distinct).index(key))
        pictures, questions = zip(*distinct.values(), strict=True)
        frames = torch.from_numpy(np.stack(pictures)).float() / 127.5 - 1
        seen = look(self.model.model.visual, in_patches(frames[:, None]))
        hint = hints(seen.pooler_output[0], *targets(questions, REGION_NAMES))

        def taken(features: Tensor) -> Tensor:
            return features.unflatten(0, (len(distinct), -1))[places].flatten(0, 1)

        return BaseModelOutputWithDeepstackFeatures(
            pooler_output=tuple(taken(each) for each in seen.pooler_output),
            deepstack_features=[tuple(taken(each) for each in level) for level in seen.deepstack_features],
        ), hint

    def token_ids(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:  # [B, T] int64, [B, T] bool
        """Return the tokens of all turns, padded behind, and which of them are learnt."""
        end = self.words.eos_token_id
        sequences, lengths = [], []
        for row in rows:
            instructions = INSTRUCTIONS[row.template]
            prompt = f"{instructions}\n\n{row.page.prompt}" if instructions else row.page.prompt
            ids = [*self.chat.before, *self.words(prompt).input_ids, *self.chat.between]
            for number, turn in enumerate(row.turns):
                if number:
                    ids += self.chat.after[1:]  # the turn's own end token is there
                own = [*self.words(turn).input_ids, end]
                ids += own
            sequences.append(ids)
            lengths.append(len(own))
        longest = max(map(len, sequences))
        batch = torch.full((len(rows), longest), self.words.pad_token_id)
        learnt = torch.zeros(len(rows), longest, dtype=torch.bool)
        for number, (ids, own_length) in enumerate(zip(sequences, lengths, strict=True)):
            batch[number, : len(ids)] = torch.tensor(ids)
            learnt[number, len(ids) - own_length : len(ids)] = True
        return batch, learnt


def page_of(row: Row) -> tuple[NDArray[np.uint8], Question]:
    """Return the page [56, 56, 3], with a question that holds its regions."""
    page, ratio = row.page, PAGE / PIXELS
    marks = page.letter_boxes if page.scale == LARGE else page.boxes
    names = page.letters if page.scale == LARGE else ("square",) * len(page.letters)
    regions = tuple(
        (f"{colour} {name}", tuple(round(each / ratio) for each in box))
        for colour, name, box in zip(page.colours, names, marks, strict=True)
    )
    return np.asarray(fit_image(page.picture(), _BUDGET)), _with_regions(regions)


def cut_of(row: Row) -> tuple[NDArray[np.uint8], Question]:
    """Return the cut of the box [56, 56, 3] in the first turn, with a question that holds its regions."""
    page = row.page
    x1, y1, x2, y2 = (int(each) for each in row.turns[0].split("[")[2].split("]")[0].split(", "))
    left, top, right, bottom = _cut_around((x1, y1, x2, y2))
    ratio = (right - left) / PIXELS
    cut = page.picture().crop((left, top, right, bottom)).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    placed = [
        (f"{colour} {letter}", _moved(each, left, top, ratio))
        for colour, letter, each in zip(page.colours, page.letters, page.letter_boxes, strict=True)
        if _overlap((left, top, right, bottom), each) > 0.5
    ]
    return np.asarray(cut), _with_regions(tuple(placed))


def _cut_around(box: Box) -> Box:
    """Return what the environment cuts out for a box in pixels of the page at 56×56, in pixels of the page."""
    x1, y1, x2, y2 = (each * PAGE // PIXELS for each in box)
    return middle_of((x1, y1, x2, y2), (PAGE, PAGE))


def _with_regions(regions: tuple[Any, ...]) -> Question:
    return Question("", "", "", "", (), {}, (regions,))


def _moved(box: Box, left: int, top: int, ratio: float) -> Box:
    """Return a box of the page in pixels of a cut."""
    x1, y1, x2, y2 = ((each - start) / ratio for each, start in zip(box, (left, top, left, top), strict=True))
    corners = [min(max(round(each), 0), PIXELS) for each in (x1, y1, x2, y2)]
    return corners[0], corners[1], corners[2], corners[3]


def _centre(box: Sequence[float]) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def _overlap(outer: Box, inner: Box) -> float:
    """Return the share of the inner box that lies in the outer one."""
    width = min(outer[2], inner[2]) - max(outer[0], inner[0])
    height = min(outer[3], inner[3]) - max(outer[1], inner[1])
    return max(width, 0) * max(height, 0) / ((inner[2] - inner[0]) * (inner[3] - inner[1]))


def train(
    folder: Path,
    minutes: float,
    source: Path = VLM_WORLDS,
    seed: int = 0,
    muon: float = 0.015,
    adamw: float = 2e-3,
    careless_from: float = 0.8,
) -> None:
    """Train for a number of minutes of processor time, and save model and processor.

    `source` is the folder to go on from; `muon` and `adamw` are learning rates, which fall to zero; `careless_from` is
    the share of the time after which boxes are the annotator's.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(900 + seed)
    model = Qwen3VLForConditionalGeneration.from_pretrained(source)
    processor = vlm_model.processor(of_worlds=True)
    processor.save_pretrained(folder)
    batches, hints = ZoomRows(model, processor), Hints(vlm_model.VLMSize().width, REGION_NAMES)
    optimizers = build_optimizers(nn.ModuleList([model, hints]), muon, adamw)
    running: dict[str, float] = {}
    started, step, spent = time.process_time(), 0, 0.0
    a_step = 4 * (BOXES + LARGE_LETTERS + GUESSES + CUTS)
    model.train()
    while spent < 1:
        spent = (time.process_time() - started) / (60 * minutes)
        set_rate_by_time(optimizers, step, spent)
        for kind in ("boxes", "letters", "cuts"):
            rows = draw_rows(kind, rng, spent > careless_from)
            losses, hint = batches.losses(rows, hints)
            share = 0.5 * min(1, (step + 1) / 60)  # the layer of the hints is new: it learns before it teaches
            ((losses.sum() + share * hint * len(rows)) / a_step).backward()
            for name, value in ((kind, losses.mean().item()), (f"{kind}-hints", hint.item())):
                running[name] = 0.95 * running.get(name, value) + 0.05 * value
        advance(optimizers, model)
        step += 1
        if step % 20 == 0:
            summary = " ".join(f"{name} {value:.3f}" for name, value in running.items())
            print(f"zoom step {step} ({spent:.0%}) {summary}", flush=True)
            model.save_pretrained(folder)
    model.eval().save_pretrained(folder)


@torch.no_grad()
def measure(folder: Path, split: str, template: Template, greedy: bool, number: int = 256) -> dict[str, float]:
    """Return the means over the episodes of the first samples of a split.

    `success`, `looked`, `hit` of all; `read`, the success of hits; `missed-read`, that of looks that hit nothing.
    """
    part = ModelPartConfig(train=True)
    config = VLMConfig(model=str(folder), device="cpu", train="full", vision=part, connector=part)
    sampling = TokenSamplingConfig(temperature=0.0 if greedy else 1.0, max_new_tokens=12)
    policy = VLMPolicy.from_config(config, sampling, MediaConfig(image=ImageConfig(max_pixels=PIXELS**2)))
    policy.play_in(ZoomPages(template=template))
    outcomes: list[Mapping[str, Any]] = []
    for source in ("zoom", "zoom-large"):
        chosen = [sample for sample in samples(split) if sample.source == source][:number]
        for begin in range(0, len(chosen), 128):
            requests = [RolloutRequest(each, 1, n) for n, each in enumerate(chosen[begin : begin + 128])]
            episodes = policy.rollout(requests, seed=begin).episodes or ()
            outcomes += [{**each.outcome, "source": source, "first": each.texts[0]} for each in episodes]
    found = {}
    for source in ("zoom", "zoom-large"):
        own = [each for each in outcomes if each["source"] == source]
        kinds = {
            "success": own,
            "read": [each for each in own if each["hit"]],
            "missed-read": [each for each in own if each["missed"]],
            "direct": [each for each in own if not each["looked"]],
        }
        for kind, rows in kinds.items():
            if rows:
                found[f"{source} {kind}"] = sum(each["success"] for each in rows) / len(rows)
        if own:
            found |= {f"{source} {key}": sum(each[key] for each in own) / len(own) for key in ("looked", "hit")}
    return found


def main() -> None:
    """Train the model, or print the table of its episodes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=["train", "measure"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--source", type=Path, default=VLM_WORLDS, help="folder of the model to go on from")
    parser.add_argument("--careless-from", type=float, default=0.8, help="share of the time on right boxes")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=128, help="of each size of letters, to measure on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "train":
        rates = {"muon": 0.015 * args.rate, "adamw": 2e-3 * args.rate}
        train(args.out, args.minutes, args.source, args.seed, careless_from=args.careless_from, **rates)
        return
    for template, greedy in itertools.product(get_args(Template), (False, True)):
        values = measure(args.out, "zoom-mixed-development", template, greedy, args.samples)
        line = ", ".join(f"{name} {value:.3f}" for name, value in values.items())
        print(f"{template}, {'greedy' if greedy else 'T = 1'}: {line}", flush=True)


if __name__ == "__main__":
    main()
