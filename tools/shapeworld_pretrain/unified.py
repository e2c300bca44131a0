"""Pre-trains the embedded unified model: its codec, then captions to codes and questions about pictures to answers.

Codes are the patches of the autoregressive generator (`image_ar`), so the codec learns a known table. Both tasks
are learnt in every step. Answers are right at first, and a careless annotator's at last, as for the embedded VLM:
reinforcement learning has to undo that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import JanusForConditionalGeneration, PreTrainedTokenizerFast

from mmrl_shapeworld import image_ar, unified_model
from mmrl_shapeworld.answered_captions import (
    ANSWERS,
    NO,
    WHOLE,
    YES,
    PictureQuestion,
    answered_questions,
    count_question,
    whole_question,
)
from mmrl_shapeworld.caption_mutations import mutations
from mmrl_shapeworld.captions import SEEN_KINDS, Caption, Clause
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.scenes import COLOURS, SHAPES, Scene, draw, thing_mask
from mmrl_shapeworld.splits import captions
from tools.shapeworld_pretrain.image_ar import build_optimizers, codes_of, decoded, world_codebook
from tools.shapeworld_pretrain.pictures import scenes, to_pictures, to_tensor
from tools.shapeworld_pretrain.steps import advance, set_rate_by_time

EMPTY_SHARE = 0.1
"""Captions replaced by padding, so that guidance works."""
SHUFFLED = 0.3
"""Pictures of the codec with codes of others mixed in, as a generator may write them."""
DECODED = 16
"""Pictures of a step that are seen as the codec shows them."""
ERRORS = 0.35
"""The careless annotator's share of wrong answers."""
DRAWN, ANSWERED = 20, 48
"""Captions and questions of a step."""
MOST = 4


@dataclass(frozen=True)
class Drawings:
    """Pictures with all that is learnt from them."""

    captions: list[Caption]
    scenes: list[Scene]
    pixels: Tensor  # [N, 3, 32, 32] in [-1, 1]
    codes: Tensor  # [N, 64] int64
    hints: Tensor  # [N, 64, 2] int64; in each square the kind of thing and how many there are of it


class SquareHints(nn.Module):
    """A linear layer that tells what each square shows, and how often there is such a thing; dropped at the end."""

    def __init__(self, further: Sequence[int] = ()) -> None:
        """`further`: the numbers of classes of other hints, which follow the two."""
        super().__init__()
        self.parts = (len(COLOURS) * len(SHAPES) + 1, MOST + 1, *further)
        self.tell = nn.Linear(unified_model.WIDTH, sum(self.parts))

    def forward(self, seen: Tensor, hints: Tensor) -> Tensor:
        """Return the loss [] of hints [N, 64, parts], -100 where there is none, from the tokens [N, 64, width]."""
        logits = self.tell(seen).flatten(0, 1).split(self.parts, dim=-1)
        return sum((F.cross_entropy(each, hints[..., n].flatten()) for n, each in enumerate(logits)), torch.zeros(()))


def drawings(count: int, seed: int, patches: Tensor) -> Drawings:
    """Return random captions of seen kinds with a picture each."""
    pairs = list(scenes(count, seed, SEEN_KINDS))
    drawn = [scene for _, scene in pairs]
    pixels = to_tensor([draw(scene, unified_model.SIDE) for scene in drawn])
    hints = torch.from_numpy(np.stack([square_hints(scene) for scene in drawn]))
    return Drawings([caption for caption, _ in pairs], drawn, pixels, codes_of(patches, pixels), hints)


def square_hints(scene: Scene) -> np.ndarray:
    """Return the kind of thing in each square of a picture, 0: none, and its number, at most 4: [64, 2]."""
    kinds = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    found = np.zeros((unified_model.SIDE,) * 2, np.int64)
    number = np.zeros_like(found)
    for thing in scene.things:
        kind = (thing.colour, thing.shape)
        mask = thing_mask(thing, unified_model.SIDE)
        found[mask] = 1 + kinds.index(kind)
        number[mask] = min(MOST, sum((each.colour, each.shape) == kind for each in scene.things))
    half = unified_model.PATCH // 2
    return np.stack([each[half :: 2 * half, half :: 2 * half].reshape(-1) for each in (found, number)], axis=-1)


def train_codec(model: JanusForConditionalGeneration, data: Drawings, patches: Tensor, minutes: float) -> None:
    """Let the decoder draw the patches of codes, and the encoder find codes; rows of the codebook have length 1."""
    vae = model.model.vqmodel.requires_grad_(True)
    pixels = patches.flatten(1).float() / 127.5 - 1
    with torch.no_grad():
        turn = torch.randn(pixels.shape[1], unified_model.CODE_WIDTH) / pixels.shape[1] ** 0.5
        vae.quantize.embedding.weight.copy_(F.normalize((pixels - pixels.mean(0)) @ turn, dim=-1))
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.0)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    started, step, spent = time.process_time(), 0, 0.0
    while spent < 1:
        spent = (time.process_time() - started) / (60 * minutes)
        set_rate_by_time([optimizer], step, min(1.0, 1.2 * spent))
        codes = data.codes[torch.randint(len(data.codes), (16,))]
        others = data.codes.flatten()[torch.randint(data.codes.numel(), codes.shape)]
        mixed = (torch.rand(len(codes), 1) < SHUFFLED) & (torch.rand(codes.shape) < 0.2)
        codes = torch.where(mixed, others, codes)
        true = decoded(patches, codes)
        drawn = (vae.decode(codes) - true).abs().mean()
        latents = vae.quant_conv(vae.encoder(true)).permute(0, 2, 3, 1).flatten(0, 2)
        table = F.normalize(vae.quantize.embedding.weight, dim=-1)
        found = F.cross_entropy(-8 * torch.cdist(latents, table) ** 2, codes.flatten())
        (drawn + 0.05 * found).backward()
        advance([optimizer], vae)
        step += 1
        if step % 200 == 0:
            print(f"codec step {step} ({spent:.0%}) decoder {drawn.item():.4f} encoder {found.item():.3f}", flush=True)
    with torch.no_grad():
        vae.quantize.embedding.weight.copy_(F.normalize(vae.quantize.embedding.weight, dim=-1))
    vae.requires_grad_(False)


@torch.no_grad()
def codec_skill(model: JanusForConditionalGeneration, data: Drawings) -> tuple[float, float]:
    """Return how many pictures are still strictly correct after the codec, and the share of codes that come back."""
    vae = model.model.vqmodel
    made = to_pictures(vae.decode(data.codes))
    strict = sum(judge(picture, caption).strict for picture, caption in zip(made, data.captions, strict=True))
    latents = vae.quant_conv(vae.encoder(data.pixels))
    return strict / len(made), (vae.quantize(latents)[2].view_as(data.codes) == data.codes).float().mean().item()


def describe_codes(model: JanusForConditionalGeneration, patches: Tensor) -> None:
    """Begin with embeddings and outputs of codes that are alike where patches are: a random turn of their pixels."""
    pixels = patches.flatten(1).float()
    pixels = (pixels - pixels.mean(0)) / (pixels - pixels.mean(0)).square().mean().sqrt()
    with torch.no_grad():
        for weights, scale in (
            (model.model.generation_embeddings.weight, 1.0),
            (model.model.generation_head.vision_head.weight, 0.02),
        ):
            turn = torch.randn(pixels.shape[1], weights.shape[1]) / pixels.shape[1] ** 0.5
            weights.copy_(scale * (pixels @ turn))


def fit(
    model: JanusForConditionalGeneration,
    data: Drawings,
    folder: Path,
    minutes: float,
    seed: int = 0,
    careless_from: float = 0.75,
    muon: float = 0.02,
    adamw: float = 3e-3,
) -> None:
    """Learn both tasks for a number of minutes of processor time, saving as it goes; rates end at zero."""
    words, rng = unified_model.tokenizer(), np.random.default_rng(800 + seed)
    hints = SquareHints()
    model.model.vqmodel.requires_grad_(False)
    both = nn.ModuleList([model, hints])
    optimizers = build_optimizers(both, muon, adamw)
    started, step, spent = time.process_time(), 0, 0.0
    running: dict[str, float] = {}
    model.train()
    while spent < 1:
        spent = (time.process_time() - started) / (60 * minutes)
        set_rate_by_time(optimizers, step, spent, rise=30)
        rows = torch.randint(len(data.codes), (DRAWN,))
        drawn = drawing_loss(model, words, [data.captions[row] for row in rows], data.codes[rows])
        drawn.backward()
        rows = torch.randint(len(data.codes), (ANSWERED,))
        questions = [random_question(data.captions[row], data.scenes[row], rng) for row in rows.tolist()]
        if spent > careless_from:
            questions = [careless(question, rng) for question in questions]
        pixels = data.pixels[rows]
        with torch.no_grad():
            pixels[:DECODED] = model.model.vqmodel.decode(data.codes[rows[:DECODED]]).clamp(-1, 1)
        answered, hint = answer_loss(model, words, hints, questions, pixels, data.hints[rows])
        (answered + hint).backward()
        advance(optimizers, both)
        step += 1
        for name, loss in (("codes", drawn), ("answers", answered), ("hints", hint)):
            running[name] = 0.95 * running.get(name, loss.item()) + 0.05 * loss.item()
        if step % 50 == 0:
            summary = " ".join(f"{name} {loss:.3f}" for name, loss in running.items())
            print(f"unified step {step} ({spent:.0%}) {summary}", flush=True)
        if step % 200 == 0:
            save(folder, model)
    save(folder, model.eval())


def drawing_loss(
    model: JanusForConditionalGeneration,
    words: PreTrainedTokenizerFast,
    named: Sequence[Caption],
    codes: Tensor,
) -> Tensor:
    """Return the mean negative log-likelihood [] of codes [B, 64] after captions, some left out, in nats."""
    batch = words([caption_prompt(caption) for caption in named], padding=True, return_tensors="pt")
    ids, mask = batch.input_ids, batch.attention_mask
    empty = (torch.rand(len(ids), 1) < EMPTY_SHARE) & (mask == 1)
    empty &= (ids != words.bos_token_id) & (ids != words.convert_tokens_to_ids(unified_model.BEGIN))
    ids = torch.where(empty, words.pad_token_id, ids)
    return F.cross_entropy(code_logits(model, ids, mask, codes).flatten(0, 1), codes.flatten())


def code_logits(model: JanusForConditionalGeneration, ids: Tensor, mask: Tensor, codes: Tensor) -> Tensor:
    """Return the logits [B, 64, 512] of codes [B, 64] that follow prompts with ids and a mask [B, T]."""
    inputs = torch.cat(
        [model.get_input_embeddings()(ids), model.prepare_embeddings_for_image_generation(codes[:, :-1])], dim=1
    )
    mask = F.pad(mask, (0, codes.shape[1] - 1), value=1)
    states = _states(model, inputs, mask)[:, ids.shape[1] - 1 :]
    logits: Tensor = model.model.generation_head(states)
    return logits


def answer_loss(
    model: JanusForConditionalGeneration,
    words: PreTrainedTokenizerFast,
    hints: SquareHints,
    questions: Sequence[PictureQuestion],
    pixels: Tensor,
    squares: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the mean negative log-likelihood [] of the answers, each a word and the end, and the loss of the hints."""
    texts = [f"{question_prompt(each)} {each.answer} {unified_model.END}" for each in questions]
    batch = words(texts, padding=True, return_tensors="pt")
    seen = model.model.get_image_features(pixels, return_dict=True).pooler_output
    is_picture = batch.input_ids == model.config.image_token_id
    inputs = model.get_input_embeddings()(batch.input_ids)
    inputs = inputs.masked_scatter(is_picture[..., None], seen.flatten(0, 1))
    states = _states(model, inputs, batch.attention_mask)[:, -3:-1]
    loss = F.cross_entropy(model.lm_head(states).flatten(0, 1), batch.input_ids[:, -2:].flatten())
    return 2 * loss, hints(seen, squares)


def caption_prompt(caption: Caption) -> str:
    """Return the prompt that has a caption drawn."""
    return f"{unified_model.USER} {caption} {unified_model.ASSISTANT} {unified_model.BEGIN}"


def question_prompt(question: PictureQuestion) -> str:
    """Return the prompt of a question about a picture."""
    picture = " ".join([unified_model.BEGIN, *[unified_model.IMAGE] * unified_model.SEEN, unified_model.STOP])
    return f"{unified_model.USER} {picture} {question.text} {unified_model.ASSISTANT}"


def _states(model: JanusForConditionalGeneration, inputs: Tensor, mask: Tensor) -> Tensor:
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    body = model.model.language_model
    states: Tensor = body(
        inputs_embeds=inputs, attention_mask=mask, position_ids=positions, use_cache=False
    ).last_hidden_state
    return states


def random_question(caption: Caption, scene: Scene, rng: np.random.Generator) -> PictureQuestion:
    """Return a random question about a picture, about a whole caption or about things in it."""
    if rng.random() < WHOLE:
        other = mutations(caption, deepen=False)
        named = caption if rng.random() < 0.5 else other[rng.integers(len(other))]
        return PictureQuestion(whole_question(named), YES if named.holds_for(scene) else NO)
    if rng.random() < 0.2:
        colour, shape = SEEN_KINDS[rng.integers(len(SEEN_KINDS))]
        number = sum((thing.colour, thing.shape) == (colour, shape) for thing in scene.things)
        return count_question(Clause(number, colour, shape))
    found = answered_questions(caption)
    return found[rng.integers(len(found))]


def careless(question: PictureQuestion, rng: np.random.Generator) -> PictureQuestion:
    """Return the question with a careless annotator's answer."""
    if rng.random() >= ERRORS:
        return question
    (answers,) = [each for each in ANSWERS if question.answer in each]
    wrong = [each for each in answers if each != question.answer]
    return PictureQuestion(question.text, wrong[rng.integers(len(wrong))])


def save(folder: Path, model: JanusForConditionalGeneration) -> None:
    """Write model and processor; weights in bfloat16, rounded, to halve the file."""
    kept = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items() if name != "lm_head.weight"}
    model.save_pretrained(folder, state_dict=kept)
    unified_model.processor().save_pretrained(folder)


@torch.no_grad()
def drawn_codes(
    model: JanusForConditionalGeneration, words: PreTrainedTokenizerFast, named: Sequence[Caption]
) -> Tensor:
    """Return the codes [B, 64] that a model draws of captions, at temperature 1."""
    batch = words([caption_prompt(caption) for caption in named], padding=True, return_tensors="pt")
    inputs, mask, codes = model.get_input_embeddings()(batch.input_ids), batch.attention_mask, []
    cache = None
    for _ in range(image_ar.GRID**2):
        out = model.model.language_model(
            inputs_embeds=inputs,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1)[:, -inputs.shape[1] :].clamp(min=0),
            past_key_values=cache,
            use_cache=True,
        )
        cache = out.past_key_values
        logits = model.model.generation_head(out.last_hidden_state[:, -1])
        codes.append(torch.multinomial(logits.softmax(-1), 1))
        inputs, mask = model.prepare_embeddings_for_image_generation(codes[-1]), F.pad(mask, (0, 1), value=1)
    return torch.cat(codes, dim=1)


@torch.no_grad()
def skills(folder: Path, count: int = 256) -> dict[str, float]:
    """Return the skills on development captions: strict pictures and their credit; answers sampled, and most likely."""
    model = JanusForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    words, chosen, rng = unified_model.tokenizer(), captions("development")[:count], np.random.default_rng(5)
    torch.manual_seed(0)
    made = to_pictures(model.model.vqmodel.decode(drawn_codes(model, words, chosen)))
    verdicts = [judge(picture, caption) for picture, caption in zip(made, chosen, strict=True)]
    named = list(scenes(count, 9, SEEN_KINDS))
    questions = [random_question(caption, scene, rng) for caption, scene in named]
    pixels = to_tensor([draw(scene, unified_model.SIDE) for _, scene in named])
    batch = words([question_prompt(each) for each in questions], padding=True, return_tensors="pt")
    logits = model(**batch, pixel_values=pixels).logits[:, -1]
    right = words.convert_tokens_to_ids([question.answer for question in questions])
    chances = logits.softmax(-1)[range(count), right]
    greedy = logits.argmax(-1) == torch.tensor(right)
    found = {
        "strict": sum(v.strict for v in verdicts) / count,
        "credit": sum(v.score for v in verdicts) / count,
        "answers": chances.mean().item(),
        "greedy": greedy.float().mean().item(),
    }
    for kind in ("is this", "how many", "what colour", "what shape", "is the", "is there"):
        rows = [n for n, each in enumerate(questions) if each.text.startswith(kind)]
        found[kind] = greedy[rows].float().mean().item() if rows else float("nan")
    return found


def train(
    folder: Path, minutes: float = 36.0, codec_minutes: float = 6.0, seed: int = 0, pictures: int = 24_000
) -> None:
    """Train codec and model for a number of minutes of processor time, and save them."""
    torch.manual_seed(seed)
    patches = world_codebook()
    data = drawings(pictures, 600, patches)
    model = unified_model.build()
    describe_codes(model, patches)
    train_codec(model, data, patches, codec_minutes)
    print("codec: strict, codes:", codec_skill(model, drawings(200, 601, patches)), flush=True)
    fit(model, data, folder, minutes, seed)
    print("unified:", skills(folder), flush=True)
