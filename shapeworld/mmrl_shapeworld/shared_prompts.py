"""The cost of an update of a vision-language model whose answers share their prompt, against one copy for each answer.

The model has the classes of the embedded one at a larger size and random weights: time does not depend on them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmrl.config.media import MediaConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.tokens.log_probs import TokenScores
from mmrl.understanding.prompt_encoder import PromptEncoder
from mmrl.understanding.vlm import VLM, describe
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.understanding.vlm_replay import TokenRecording, packed_scores, row_scores
from mmrl_shapeworld import vlm_model

WIDTH, LAYERS = 192, 4


def update_cost(seed: int, answers: int, tokens: int = 32, side: int = 224, turns: int = 5) -> dict[str, list[float]]:
    """Return what one policy-gradient update of `answers` random answers of `tokens` tokens to one prompt costs.

    The prompt is a random image of `side` x `side` pixels, (side / 14)^2 tokens, and a question. Both ways compute the
    same loss and gradients; they take `turns` turns in this process, in alternating order, and CPU time counts.

    Returns:
        `speedup`: the median over turns of the time with one prompt for each answer, divided by that with a shared
        prompt; `token_ratio`: the same ratio of tokens, N (P + R) / (P + N R), for N answers of R tokens to a prompt of
        P; `gradient_difference`: the norm of the difference of the gradients, divided by the norm of the gradient.
    """
    torch.manual_seed(seed)
    vlm = _random_vlm(side)
    image = Image.fromarray(np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8))
    recording = random_answers(vlm, image, "Detect all red shapes.", answers, tokens, seed)
    advantages = torch.linspace(-1, 1, answers)[:, None] if answers > 1 else torch.ones(1, 1)
    ways: dict[str, Callable[[], TokenScores]] = {
        "repeated": lambda: row_scores(vlm, recording, separate_prompts=True),
        "shared": lambda: packed_scores(vlm, recording, fused="auto"),
    }
    gradients = {name: gradient(vlm, way, advantages) for name, way in ways.items()}  # a first call warms caches, too
    difference = (gradients["shared"] - gradients["repeated"]).norm() / gradients["repeated"].norm()
    ratios = []
    for turn in range(turns):
        seconds = {}
        for name in sorted(ways, reverse=turn % 2 == 1):
            started = time.process_time()
            gradient(vlm, ways[name], advantages)
            seconds[name] = time.process_time() - started
        ratios.append(seconds["repeated"] / seconds["shared"])
    prompt = recording.prompts[0].length
    return {
        "speedup": [float(np.median(ratios))],
        "token_ratio": [answers * (prompt + tokens) / (prompt + answers * tokens)],
        "gradient_difference": [difference.item()],
    }


def _random_vlm(side: int) -> VLM:
    """Return a Qwen3-VL model of 3.3 M parameters."""
    processor = vlm_model.processor()
    processor.image_processor.size = {"shortest_edge": side**2, "longest_edge": side**2}
    size = vlm_model.VLMSize(width=WIDTH, layers=LAYERS, inner=4 * WIDTH, vision_width=WIDTH // 2, side=side)
    model = vlm_model.build(processor.tokenizer, size)
    known = describe(model.eval(), processor, torch.device("cpu"))
    policy = VLMPolicy(known, VLMConfig(model="random", train="full"), TokenSamplingConfig(), MediaConfig())
    return policy.vlm


def random_answers(vlm: VLM, image: Image.Image, question: str, answers: int, tokens: int, seed: int) -> TokenRecording:
    """Return answers of random tokens, each with `tokens` of them, to one prompt."""
    with tempfile.TemporaryDirectory() as folder:
        image.save(path := Path(folder) / "image.png")
        sample = Sample(id="0", prompt=question, images=(str(path),))
        prompt = PromptEncoder(vlm, MediaReader(MediaBudget())).encode(sample)
    suppressed = set(vlm.suppressed.tolist())
    allowed = torch.tensor([token for token in range(len(vlm.tokenizer)) if token not in suppressed])
    drawn = allowed[torch.randint(len(allowed), (answers, tokens), generator=torch.Generator().manual_seed(seed))]
    return TokenRecording([prompt], [0] * answers, drawn, [tokens] * answers, 1.0)


def policy_loss(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """Return Dr. GRPO's loss at a ratio of 1; log-probabilities [answers, tokens], advantages [answers, 1]."""
    ratio = (log_probs - log_probs.detach()).exp()
    return -(ratio * advantages).mean()


def gradient(vlm: VLM, scores: Callable[[], TokenScores], advantages: Tensor) -> Tensor:
    """Return the gradient of `policy_loss` with respect to all trained weights, flattened."""
    vlm.model.zero_grad()
    policy_loss(scores()[0], advantages).backward()
    return torch.cat([p.grad.flatten() for p in vlm.model.parameters() if p.grad is not None])
