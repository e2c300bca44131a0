"""Answers that servers wrote under several versions of the weights, and the check of their last tokens.

vLLM's `/pause?mode=keep` freezes a request; after `/resume` it goes on under the new weights. Unless its keys and
values were discarded (`reset_running_requests`), those of the tokens before are of the old weights, and the next ones
have a distribution that is of no version. The log-probabilities that the trainer computes then differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from mmrl.tokens import pad_right
from mmrl.understanding.encoded_prompt import EncodedPrompt
from mmrl.understanding.serving.generate_messages import GroupAnswers, GroupCall
from mmrl.understanding.vlm_replay import TokenRecording


@dataclass(frozen=True)
class InterruptedAnswers:
    """The answers that went on under the newest weights, and what the server said of their tokens from there on."""

    recording: TokenRecording
    log_probs: list[tuple[int, int, float]]  # row, place in the answer, log-probability

    def mean_gap(self, own: Tensor) -> float:
        """Return the mean difference from the trainer's log-probabilities [B, T], over the tokens of the newest
        weights."""
        return sum(abs(value - float(own[row, place])) for row, place, value in self.log_probs) / len(self.log_probs)


def interrupted_answers(
    calls: Sequence[GroupCall],
    answers: Sequence[GroupAnswers],  # with versions
    newest: int,
    temperature: float,  # answers that were sampled at another one are left out
    padding: int,
) -> InterruptedAnswers | None:
    """Return the answers that began before the version `newest` and end under it; None if there are none."""
    prompts: list[EncodedPrompt] = []
    prompt_of: list[int] = []
    token_ids: list[list[int]] = []
    log_probs: list[tuple[int, int, float]] = []
    for call, group in zip(calls, answers, strict=True):
        if group.versions is None or call.sampling.temperature != temperature:
            continue
        begun = len(token_ids)
        for ids, values, versions in zip(group.token_ids, group.log_probs, group.versions, strict=True):
            if not versions[0] < newest == versions[-1]:
                continue
            first = versions.index(newest)
            log_probs += [(len(token_ids), place, values[place]) for place in range(first, len(ids))]
            token_ids.append(ids)
        prompt_of += [len(prompts)] * (len(token_ids) - begun)
        prompts += [call.prompt] if len(token_ids) > begun else []
    if not token_ids:
        return None
    tokens, _ = pad_right(token_ids, padding)
    lengths = [len(ids) for ids in token_ids]
    return InterruptedAnswers(TokenRecording(prompts, prompt_of, tokens, lengths, temperature), log_probs)
