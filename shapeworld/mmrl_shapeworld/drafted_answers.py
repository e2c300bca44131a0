"""An experiment with a drafter whose traffic changes: questions of one task, then those of another.

The embedded model answers and is not trained. It writes a box first, and lists of boxes with their labels after that.
"""

from __future__ import annotations

from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import DraftConfig, TokenSamplingConfig
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl_shapeworld.shipped_models import VLM as VLM_FOLDER
from mmrl_shapeworld.vqa.question_splits import samples

DOMAINS = ("grounding", "detection")
"""The tasks of the questions, before and after the change."""
CALLS, QUESTIONS, ANSWERS = 6, 16, 2
"""Calls with questions of each task, questions of a call, and answers to each."""
LAST = 3
"""The calls before the change, and those at the end, that are measured."""


def switched_traffic(seed: int, relearn: bool = True) -> dict[str, list[float]]:
    """Answer six calls of questions of one task, then six of another, with a drafter that counts 192 answers.

    Args:
        seed: of the answers, and of which questions there are.
        relearn: False: the drafter keeps the answers of the first task.

    Returns:
        `before`, `switch` and `after`: the share of accepted guesses in the last calls of the first task, in the first
        call of the second, and in its last calls. `tokens_per_pass`: in its last calls. `tokens`: of all answers.
    """
    drafts = DraftConfig(answers=CALLS * QUESTIONS * ANSWERS, relearn=relearn)
    sampling = TokenSamplingConfig(max_new_tokens=48, drafts=drafts)
    policy = VLMPolicy.from_config(VLMConfig(model=str(VLM_FOLDER), device="cpu"), sampling, frozen=True)
    accepted, per_pass, tokens = [], [], 0
    for task in DOMAINS:
        questions = samples(f"vlm-{task}-validation")
        for call in range(CALLS):
            start = (seed * CALLS + call) * QUESTIONS
            chosen = [questions[number % len(questions)] for number in range(start, start + QUESTIONS)]
            requests = [RolloutRequest(sample, ANSWERS, group) for group, sample in enumerate(chosen)]
            rollout = policy.rollout(requests, seed=seed * CALLS + call)
            tokens += int(rollout.mask.sum())
            found = policy.rollout_metrics()
            accepted.append(found["drafts/accepted"])
            per_pass.append(found["drafts/tokens_per_pass"])
    return {
        "before": [sum(accepted[CALLS - LAST : CALLS]) / LAST],
        "switch": [accepted[CALLS]],
        "after": [sum(accepted[-LAST:]) / LAST],
        "tokens_per_pass": [sum(per_pass[-LAST:]) / LAST],
        "tokens": [float(tokens)],
    }
