"""Trains the tiny CLIP on every caption of ShapeWorld, with near misses and broken pictures in the batch.

There are only 732 captions: the softmax of each picture holds all that are true of any picture of the batch, near
misses among them, and a fresh 30 % of the others. The other way round, each caption ranks its picture above the
batch, which holds every picture three times: as it is, with one thing changed, and broken. That is what makes the
cosine a reward that is hard to fool: a reward compares pictures of one caption.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import CLIPModel, CLIPTokenizer

from mmrl_shapeworld import clip_model, observer, shipped_models
from mmrl_shapeworld.captions import KINDS, sample_caption, sample_scene
from mmrl_shapeworld.negatives import edited, every_caption, true_captions
from mmrl_shapeworld.scenes import Scene, draw, thing_mask
from tools.shapeworld_pretrain.corruptions import FAULTS, break_picture
from tools.shapeworld_pretrain.steps import advance

DRAWN_AT = (32, 32, 32, 64, 128)
"""Sizes at which pictures are drawn, before they are scaled down to 32 as the processor does."""
TOKENS = 10
"""The longest caption, with its start and its end; the causal text tower never sees the padding after it."""
MOST = 5
"""Things of one kind that are told apart by the hints: 0 to 5."""
OTHER_CAPTIONS = 0.3
"""Share of the captions that are true of no picture of the batch, drawn anew each step to save time."""

SIDES = {"left of": (-1.0, 0.0), "right of": (1.0, 0.0), "above": (0.0, -1.0), "below": (0.0, 1.0)}


@dataclass(frozen=True)
class Pictures:
    """Triples of pictures: number 3i is good, 3i + 1 has one thing changed, 3i + 2 is broken (labels -100)."""

    pixels: Tensor  # [3N, 3, 32, 32] uint8
    truth: Tensor  # [3N, 732] bool; which captions hold
    patches: Tensor  # [3N, patches] int64; the kind at the centre of each patch, len(KINDS) for background
    counts: Tensor  # [3N, kinds] int64
    places: Tensor  # [3N, kinds, 2] float32; mean centre of the things of a kind, in shares of the side


def draw_triples(count: int, seed: int) -> Pictures:
    """Fresh pictures of all kinds, the held-out ones too: this is a judge, not a policy."""
    rng = np.random.default_rng(seed)
    numbers = {caption: number for number, caption in enumerate(every_caption())}
    faults = list(FAULTS)
    pixels = np.empty((3 * count, 32, 32, 3), np.uint8)
    truth = torch.zeros(3 * count, len(numbers), dtype=torch.bool)
    patches = torch.full((3 * count, (clip_model.PIXELS // clip_model.PATCH) ** 2), -100)
    counts, places = torch.full((3 * count, len(KINDS)), -100), torch.zeros(3 * count, len(KINDS), 2)
    last = sample_scene(sample_caption(rng, KINDS), rng)
    for row in range(0, 3 * count, 3):
        scene = sample_scene(sample_caption(rng, KINDS), rng)
        for offset, each in enumerate((scene, edited(scene, rng))):
            picture = draw(each, int(rng.choice(DRAWN_AT))).resize((32, 32), Image.Resampling.BICUBIC)
            pixels[row + offset] = np.asarray(picture)
            truth[row + offset, [numbers[caption] for caption in true_captions(each)]] = True
            patches[row + offset] = patch_labels(each)
            counts[row + offset], places[row + offset] = inventory(each)
        pixels[row + 2] = break_picture(scene, last, faults[rng.integers(len(faults))], rng)
        last = scene
    return Pictures(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), truth, patches, counts, places)


def patch_labels(
    scene: Scene,
) -> Tensor:  # [patches] int64
    """The kind of thing at the centre of each patch."""
    labels = np.full((clip_model.PIXELS, clip_model.PIXELS), len(KINDS))
    for thing in scene.things:
        labels[thing_mask(thing, clip_model.PIXELS)] = KINDS.index((thing.colour, thing.shape))
    middle = clip_model.PATCH // 2
    return torch.from_numpy(labels[middle :: clip_model.PATCH, middle :: clip_model.PATCH].reshape(-1).copy())


def inventory(
    scene: Scene,
) -> tuple[Tensor, Tensor]:  # [kinds] int64, [kinds, 2] float32
    """Return the number of things of each kind, and their mean place."""
    counts, places = torch.zeros(len(KINDS), dtype=torch.long), torch.zeros(len(KINDS), 2)
    for thing in scene.things:
        kind = KINDS.index((thing.colour, thing.shape))
        counts[kind] += 1
        places[kind] += torch.tensor([thing.x, thing.y])
    return counts, places / counts.clamp(min=1)[:, None]


@torch.no_grad()
def decode_some(pixels: Tensor, vae: AutoencoderKL, share: float = 0.5) -> None:
    """Send a share of the pictures through the autoencoder, in place: what is generated comes out of it, too."""
    for part in (torch.rand(len(pixels)) < share).nonzero()[:, 0].split(250):
        out = vae.decode(vae.encode(scaled(pixels[part])).latent_dist.mode()).sample
        pixels[part] = ((out.clamp(-1, 1) + 1) * 127.5).round().byte()


def scaled(pixels: Tensor) -> Tensor:
    """[0, 255] to [-1, 1]."""
    return pixels.float() / 127.5 - 1


def train(
    folder: Path,
    open_clip_folder: Path,
    vae_folder: Path,
    minutes: float,
    seed: int = 0,
    triples: int = 12_000,
    start: Path | None = None,
) -> None:
    """Train for a given processor time (after the pictures are drawn) and save both forms.

    `start` is a folder of the transformers form to go on from instead of a new model.
    """
    torch.manual_seed(seed)
    data = draw_triples(triples, seed=500 + seed)
    decode_some(data.pixels, AutoencoderKL.from_pretrained(vae_folder))
    # Not a new one: `models.clip_tokenizer` breaks ties differently in each process.
    tokenizer = CLIPTokenizer.from_pretrained(shipped_models.PIPELINE / "tokenizer")
    model = clip_model.build(tokenizer) if start is None else CLIPModel.from_pretrained(start)
    fit(model, caption_ids(tokenizer), data, minutes)
    clip_model.save(model, tokenizer, folder, open_clip_folder)


def caption_ids(tokenizer) -> Tensor:
    """[732, 10] token ids of every caption."""
    texts = [str(caption) for caption in every_caption()]
    return tokenizer(texts, padding="max_length", max_length=TOKENS, return_tensors="pt").input_ids


class ClipHints(nn.Module):
    """Auxiliary questions, dropped after the training: the contents of each patch, how many things of each
    kind there are and where, and the same of what a caption asks for.

    A caption says little about a picture; with these, both towers learn several times faster.
    """

    def __init__(self, picture_width: int, text_width: int) -> None:
        super().__init__()
        self.patches = nn.Linear(picture_width, len(KINDS) + 1)
        self.picture_inventory = nn.Linear(picture_width, len(KINDS) * (MOST + 1 + 2))
        self.caption_inventory = nn.Linear(text_width, len(KINDS) * (MOST + 1 + 2))

    def of_pictures(self, states: Tensor, pooled: Tensor, data: Pictures, rows: Tensor) -> Tensor:
        """The loss of the hints that pictures give."""
        patches = F.cross_entropy(self.patches(states[:, 1:]).flatten(0, 1), data.patches[rows].flatten())
        return patches + 3 * self._inventory(self.picture_inventory(pooled), data.counts[rows], data.places[rows])

    def of_texts(self, pooled: Tensor, counts: Tensor, places: Tensor) -> Tensor:
        """The loss of the hints that captions give."""
        return self._inventory(self.caption_inventory(pooled), counts, places)

    def _inventory(self, guess: Tensor, counts: Tensor, places: Tensor) -> Tensor:
        guessed_counts, guessed_places = guess.unflatten(1, (len(KINDS), -1)).split((MOST + 1, 2), dim=-1)
        there = counts > 0
        return (
            F.cross_entropy(guessed_counts.flatten(0, 1), counts.flatten().clamp(max=MOST))
            + (guessed_places[there] - places[there]).abs().mean()
        )


def inventories_of_captions() -> tuple[Tensor, Tensor]:  # [732, kinds] int64, [732, kinds, 2] float32
    """Return each caption's number of things of each kind, and their side of the other thing (-1, 0 or 1)."""
    counts = torch.tensor([observer.counts(caption) for caption in every_caption()])
    sides = torch.zeros(*counts.shape, 2)
    for row, caption in enumerate(every_caption()):
        if caption.relation:
            first, second = (KINDS.index((clause.colour, clause.shape)) for clause in caption.clauses)
            side = torch.tensor(SIDES[caption.relation])
            sides[row, first], sides[row, second] = side, -side
    return counts, sides


def fit(model: CLIPModel, ids: Tensor, data: Pictures, minutes: float, batch: int = 32, lr: float = 2e-3) -> None:
    """Minimise both rankings and the hints for a number of minutes of processor time. `batch` counts triples."""
    hints = ClipHints(model.config.vision_config.hidden_size, model.config.text_config.hidden_size)
    counts, sides = inventories_of_captions()
    optimizers = build_optimizers(nn.ModuleList([model, hints]))
    model.train()
    started, step, spent = time.process_time(), 0, 0.0
    while spent < 1:
        spent = (time.process_time() - started) / (60 * minutes)
        falling = 0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * min(1, spent)))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1, (step + 1) / 50) * falling
        rows = (3 * torch.randint(len(data.pixels) // 3, (batch, 1)) + torch.arange(3)).flatten()
        truth = data.truth[rows]
        selected = truth.any(0) | (torch.rand(len(ids)) < OTHER_CAPTIONS)
        seen = model.vision_model(pixel_values=disturb(scaled(data.pixels[rows])))
        pictures = F.normalize(model.visual_projection(seen.pooler_output), dim=-1)
        read = model.text_model(input_ids=ids[selected]).pooler_output
        texts = F.normalize(model.text_projection(read), dim=-1)
        logits = pictures @ texts.T * model.logit_scale.exp()
        ranking = ranking_loss(logits, truth[:, selected]) + ranking_loss(logits.T, truth[:, selected].T)
        hint = hints.of_pictures(seen.last_hidden_state, seen.pooler_output, data, rows)
        hint = hint + hints.of_texts(read, counts[selected], sides[selected])
        (ranking + hint).backward()
        advance(optimizers, model)
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
        step += 1
        if step % 50 == 0:
            print(f"clip step {step} ({spent:.0%}) ranking {ranking.item():.3f} hints {hint.item():.3f}", flush=True)
    model.eval()


def ranking_loss(
    logits: Tensor,  # [N, M]
    truth: Tensor,  # [N, M] bool
) -> Tensor:
    """Return the softmax loss of each true column of a row against all false ones.

    It is averaged over the row's true columns, then over the rows that have any. True columns do not compete with one
    another.
    """
    false = logits.masked_fill(truth, -math.inf).logsumexp(1, keepdim=True)
    pairs = (F.softplus(false - logits) * truth).sum(1)
    true = truth.sum(1)
    return (pairs / true.clamp(min=1)).sum() / (true > 0).sum().clamp(min=1)


def build_optimizers(trained: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside attention and feed-forward layers, AdamW for all else."""
    named = dict(trained.named_parameters())
    inner = {n for n, p in named.items() if p.ndim == 2 and ("self_attn" in n or "mlp" in n)}
    return [
        torch.optim.Muon([named[n] for n in sorted(inner)], weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([p for n, p in named.items() if n not in inner], betas=(0.9, 0.99), weight_decay=0.01),
    ]


def disturb(
    pictures: Tensor,  # [N, 3, 32, 32] in [-1, 1]
) -> Tensor:
    """A little noise, brightness, and a shift by up to one pixel for the whole batch."""
    down, right = torch.randint(-1, 2, (2,)).tolist()
    moved = torch.roll(pictures, (down, right), dims=(2, 3))
    bright = 1 + 0.05 * torch.randn(len(pictures), 1, 1, 1)
    return (moved * bright + 0.03 * torch.rand(len(pictures), 1, 1, 1) * torch.randn_like(moved)).clamp(-1, 1)
