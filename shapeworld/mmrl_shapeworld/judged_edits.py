"""An experiment for the study of ThinkRL-Edit: a small judge of edits gives a score from 1 to 5, or ticks a checklist.

The shipped editor follows two instructions to each request: the right one, and one that names the other thing. Rules
answer four questions about each edited picture. A judge, which reads the features of a frozen encoder, learns these
answers one by one, or their number as a score; what it says is drawn from its probabilities, as that of a language
model is. Without noise both rewards would be equal: the share of yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from mmrl.build.policies import build_policy
from mmrl.config.policy import PolicyConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.data.media.decode import load_image
from mmrl.data.sample import Sample
from mmrl.data.written_prompts import Instructions
from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.learned.score_head import HeadShape, ScoreHead
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld.editing import Edit, judge_edit
from mmrl_shapeworld.reasoned_edits import MOSTLY, samples
from mmrl_shapeworld.shipped_models import CLIP

Form = Literal["checklist", "score"]
QUESTIONS = 4
"""The number of questions: is the thing as requested, are its other attribute and its size kept, and is the rest?"""
TRAINING = ("formed-train", 480)
"""The split of the requests whose edits are learnt from, and how many of them, the first ones."""
DRAWS, AT_ONCE = 3, 16
"""Pictures of each instruction, and requests whose pictures are drawn in one call."""
STEPS, BATCH, LEARNING_RATE, HIDDEN = 1200, 64, 1e-3, 128
JUDGEMENTS = 16
"""Times that each picture is judged, for the variance."""


@dataclass(frozen=True)
class JudgedEdits:
    """The edits of R requests, P to each, as a judge sees them, and what rules say of them."""

    features: Tensor  # [R, P, F]
    answers: Tensor  # [R, P, QUESTIONS] bool
    right: Tensor  # [R, P] bool: the edit succeeded, in all and exactly


def judged_forms(seed: int, on: str, form: Form, calls: int = 1) -> dict[str, Sequence[float]]:
    """Train a judge, and let it judge the edits of a split many times.

    Args:
        seed: of the judge and of what it says.
        on: the split, such as formed-development.
        form: what the judge gives: a score from 1 to 5, or the answers to the questions, one by one.
        calls: scores that are averaged into one reward.

    Returns:
        Of each picture `variance`, that of its reward, and `error`, the mean distance of its reward from the share of
        questions whose right answer is yes; and `auc`: the probability that an edit that succeeded gets more than
        one to the same request that failed, where a tie counts half.
    """
    learnt, judged = drawn_edits(*TRAINING), drawn_edits(on)
    with torch.enable_grad():
        head = trained_head(learnt, form, seed)
    with torch.no_grad():
        logits = head(judged.features.flatten(0, 1))[0]
    chance = torch.Generator().manual_seed(seed)
    rewards = sampled_rewards(logits, form, JUDGEMENTS, calls, chance).view(JUDGEMENTS, *judged.right.shape)
    truth = judged.answers.float().mean(-1)
    return {
        "variance": rewards.var(0, correction=1).flatten().tolist(),
        "error": (rewards - truth).abs().mean(0).flatten().tolist(),
        "auc": [ahead(rewards, judged.right)],
    }


def trained_head(edits: JudgedEdits, form: Form, seed: int) -> ScoreHead:
    """Return a head that learnt the answers, or their number, from all pictures alike."""
    torch.manual_seed(seed)
    features, answers = edits.features.flatten(0, 1), edits.answers.flatten(0, 1)
    outputs = QUESTIONS if form == "checklist" else QUESTIONS + 1
    head = ScoreHead(HeadShape(features=features.shape[1], axes=outputs, hidden=HIDDEN))
    optimizer = torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)
    for _ in range(STEPS):
        rows = torch.randint(len(features), (BATCH,))
        logits = head(features[rows])[0]
        if form == "checklist":
            loss = functional.binary_cross_entropy_with_logits(logits, answers[rows].float())
        else:
            loss = functional.cross_entropy(logits, answers[rows].sum(1))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return head.eval()


def sampled_rewards(
    logits: Tensor,  # [N, QUESTIONS], or [N, QUESTIONS + 1] for scores
    form: Form,
    judgements: int,
    calls: int,
    chance: torch.Generator,
) -> Tensor:  # [judgements, N] in [0, 1]
    """Return rewards as a judge gives them, each time anew: the share of yes, or the mean score on the scale of 0 to 1.

    Raises:
        ValueError: a checklist has more than one call.
    """
    if form == "checklist":
        if calls != 1:
            raise ValueError(f"calls is {calls}, and a checklist is one call of each question: set 1")
        wide = logits.sigmoid().expand(judgements, *logits.shape)
        return torch.bernoulli(wide, generator=chance).mean(-1)
    drawn = torch.multinomial(logits.softmax(1), judgements * calls, replacement=True, generator=chance)
    return drawn.view(len(logits), judgements, calls).float().mean(-1).T / QUESTIONS


def ahead(rewards: Tensor, right: Tensor) -> float:  # [J, R, P] and [R, P] bool
    """Return how often a right edit has a higher reward than a wrong one to its request; a tie counts half."""
    gaps = (rewards[:, :, :, None] - rewards[:, :, None, :])[:, right[:, :, None] & ~right[:, None, :]]
    return ((gaps > 0).float() + 0.5 * (gaps == 0).float()).mean().item()


@cache
def drawn_edits(split: str, count: int | None = None) -> JudgedEdits:
    """Return what the editor makes of the first `count` requests of a split, all if None, once in a process."""
    policy = build_policy(PolicyConfig(model="shapeworld:edit"), SamplingConfig(steps=8, guidance_scale=1.0))
    reader, encoder = Instructions(behind=";"), load_encoder("learned", str(CLIP))
    encoder.freeze("cpu")
    features, answers, right = [], [], []
    every = samples(split)[:count]
    for start in range(0, len(every), AT_ONCE):
        requests = [
            RolloutRequest(reader.read(text, sample), DRAWS, row)
            for row, (sample, text) in enumerate(
                (sample, text) for sample in every[start:][:AT_ONCE] for text in _instructions(sample)
            )
        ]
        with torch.no_grad():
            drawn = policy.rollout(requests, 5_000 + start)
            pictures = [answer_image(picture) for picture in drawn.media]
            before = [load_image(sample.conditions["image"]) for sample in drawn.samples]
            edits = [Edit.from_dict(sample.answer) for sample in drawn.samples]
            seen, source = (encoder.layer_features(encoder.pixels(each)) for each in (pictures, before))
            text = encoder.embed_texts([f"a {edit.wanted.colour} {edit.wanted.shape}" for edit in edits])
        verdicts = [judge_edit(*pair) for pair in zip(pictures, edits, strict=True)]
        features.append(torch.cat([seen, seen - source, text], dim=1))
        answers.append(torch.tensor([(*verdict.answers, verdict.kept >= MOSTLY) for verdict in verdicts]))
        right.append(torch.tensor([verdict.strict for verdict in verdicts]))
    shape = (len(every), -1)
    return JudgedEdits(
        torch.cat(features).view(*shape, features[0].shape[1]),
        torch.cat(answers).view(*shape, QUESTIONS),
        torch.cat(right).view(shape),
    )


def _instructions(sample: Sample) -> tuple[str, str]:
    edit = Edit.from_dict(sample.answer)
    return str(edit), str(replace(edit, which=1 - edit.which))
