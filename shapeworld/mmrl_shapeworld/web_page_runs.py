"""Policies that choose the style of each block of a toy page, trained on a cascade of rewards or on their sum.

More colour pleases the judge of the look, and more tags are more often left open. The policy is a table of logits, one
row for each block of a page, and learns by REINFORCE with GRPO's advantages in groups of pages of one prompt.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from mmrl.algorithms.advantages import grpo_advantages
from mmrl.rewards import RewardInput, RewardSuite, WeightedReward
from mmrl_shapeworld.vqa.glyphs import LETTERS
from mmrl_shapeworld.web_pages import STYLES, PageContents, PageLook, PageStructure, write_page

BLOCKS, GROUPS, GROUP_SIZE, TESTED = 6, 4, 16, 400
WEIGHTS = {"structure": 0.2, "contents": 0.3, "look": 0.5}


def page_policy(
    seed: int, combine: Literal["cascade", "gate", "sum"], iterations: int = 40, lr: float = 0.1
) -> dict[str, list[float]]:
    """Train a policy, and return what its pages are worth.

    Args:
        combine: `cascade`: the look of well-formed pages with all contents is judged; `gate`: all looks are judged, and
            malformed pages get the lowest total; `sum`: the weighted sum.

    Returns:
        `valid`: whether each of the last pages is well-formed, 0 or 1; `look`: the look of each, 0 if malformed;
        `calls`: the calls of the look's judge for each answer of training.
    """
    rng, look = np.random.default_rng((seed, 23)), PageLook()
    suite = RewardSuite(_parts(combine, look))
    logits = torch.zeros(BLOCKS, len(STYLES), requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=lr)
    for _ in range(iterations):
        chosen, pages = _draw(logits, GROUPS, GROUP_SIZE, rng)
        totals = torch.from_numpy(suite.score(pages).values["total"])
        advantages = grpo_advantages(totals, torch.tensor([page.group for page in pages]), std="group", ddof=1)
        picked = logits.log_softmax(-1)[torch.arange(BLOCKS), chosen].sum(-1)  # [rows]
        optimizer.zero_grad()
        (-(advantages * picked).mean()).backward()
        optimizer.step()
    suite.close()
    calls = look.calls / (iterations * GROUPS * GROUP_SIZE)
    _, pages = _draw(logits, TESTED, 1, rng)
    valid = PageStructure().score(pages).values["structure"].astype(float)
    looks = PageLook().score(pages).values["look"].astype(float)
    return {"valid": valid.tolist(), "look": (valid * looks).tolist(), "calls": [calls]}


def _parts(combine: Literal["cascade", "gate", "sum"], look: PageLook) -> list[WeightedReward]:
    structure = WeightedReward(PageStructure(), WEIGHTS["structure"], gate=0.5 if combine == "gate" else None)
    contents, last = WeightedReward(PageContents(), WEIGHTS["contents"]), WeightedReward(look, WEIGHTS["look"])
    if combine == "cascade":
        contents = WeightedReward(PageContents(), WEIGHTS["contents"], after={"structure": 1.0})
        last = WeightedReward(look, WEIGHTS["look"], after={"structure": 1.0, "contents": 1.0})
    return [structure, contents, last]


def _draw(
    logits: torch.Tensor, groups: int, size: int, rng: np.random.Generator
) -> tuple[torch.Tensor, list[RewardInput]]:
    """Return [groups * size, BLOCKS] drawn styles, and the pages written in them, with other letters for each group."""
    chances = logits.detach().softmax(-1).numpy().astype(np.float64)
    chances /= chances.sum(-1, keepdims=True)
    rows, pages = [], []
    for group in range(groups):
        letters = [LETTERS[n] for n in rng.integers(len(LETTERS), size=BLOCKS)]
        for number in range(size):
            chosen = [int(rng.choice(len(STYLES), p=row)) for row in chances]
            text = write_page(letters, [STYLES[n] for n in chosen], rng)
            rows.append(chosen)
            pages.append(RewardInput(f"{group}-{number}", group, "", text=text, references={"letters": letters}))
    return torch.tensor(rows), pages
