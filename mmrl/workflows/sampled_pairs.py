"""`mmrl data pairs`: preference pairs of a policy's own answers, a right one and a wrong one to the same prompt.

Mixed preference optimisation (MPO, arXiv:2411.10442) learns from such pairs, which are sampled and scored once. The
same answers tell how difficult a prompt is: the online stage of InternVL3.5's cascade (arXiv:2508.18265) takes the
prompts of which between 0.2 and 0.8 of these answers are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.seeds import stream_seed
from mmrl.workflows.answered_prompts import AnsweredPrompts, answered_prompts


@dataclass(frozen=True)
class SampledPairs:
    """The pairs, and what their answers say about the prompts."""

    pairs: Sequence[Sample]
    """Each prompt once for every pair, with the answers as `chosen` and `rejected`, in the order of the data set."""
    answered: AnsweredPrompts
    """All answers that were sampled, of prompts without a pair as well."""
    paired: int
    """The number of prompts with a pair."""


def sampled_pairs(config: TrainConfig, answers: int, most: int = 15, success: float = 1.0) -> SampledPairs:
    """Answer each prompt of `data.path` as in training, before any training, and pair right answers with wrong ones.

    Args:
        config: a run that samples one text for each prompt; its seed draws the answers and the pairs.
        answers: to each prompt, 2 or more.
        most: pairs of one prompt; MPO's data have at most 15.
        success: an answer is right if its total reward is at least this, and wrong if it is below.

    Raises:
        ConfigError: `answers` or `most` is out of its range, answers are no single texts, or there is no pair.
        DataError: a sample cannot be read.
    """
    if answers < 2 or most < 1:
        raise ConfigError(f"--answers is {answers} and --most {most}: a pair needs 2 answers, and --most is 1 or more")
    if config.environment is not None:
        raise ConfigError(f"environment: {config.environment.name} has several turns, and a pair one text a side")
    answered = answered_prompts(config, answers)
    if any(text is None for texts in answered.texts for text in texts):
        raise ConfigError("policy: pairs of texts are made here, and this policy makes pictures: use a policy of texts")
    rng = np.random.default_rng(stream_seed(config.seed, "sampled pairs"))
    pairs: list[Sample] = []
    paired = 0
    for sample, texts, totals in zip(answered.samples, answered.texts, answered.totals, strict=True):
        scored = [(text or "", total >= success) for text, total in zip(texts, totals, strict=True) if total == total]
        right = [text for text, good in scored if good]
        wrong = [text for text, good in scored if not good]
        found = matched(right, wrong, most, rng)
        paired += bool(found)
        pairs += [
            replace(sample, id=f"{sample.id}-pair-{number}", chosen=chosen, rejected=rejected)
            for number, (chosen, rejected) in enumerate(found)
        ]
    if not pairs:
        raise ConfigError(
            f"{config.data.path}: no prompt has both a right and a wrong answer: choose more --answers, or a --success "
            "that some answers reach"
        )
    return SampledPairs(pairs, answered, paired)


def matched(
    right: Sequence[str], wrong: Sequence[str], most: int, rng: np.random.Generator
) -> list[tuple[str, str]]:  # (chosen, rejected)
    """Return pairs of a right and a wrong text by chance, no two of them equal and at most `most`.

    Each text is in a pair as long as there is room, and no text is in a second pair before all others of its side are
    in one. An answer that is written twice is two texts, and one that is both right and wrong by a reward that varies
    is no pair with itself.
    """
    if not right or not wrong:
        return []
    count = max(len(right), len(wrong))
    pairs = dict.fromkeys(zip(_in_turns(right, count, rng), _in_turns(wrong, count, rng), strict=True))
    return [(chosen, rejected) for chosen, rejected in pairs if chosen != rejected][:most]


def _in_turns(texts: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """Return that many of the texts, all of them by chance before any of them again."""
    turns = -(-count // len(texts))
    return [texts[place] for _ in range(turns) for place in rng.permutation(len(texts)).tolist()][:count]
