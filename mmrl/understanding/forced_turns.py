"""First turns of episodes that are given to the policy: the environment answers them, and the prompt ends with them.

    prompt | forced turn | observation | forced turn | observation | own tokens, turn 0 | ...
    `----------------- the prompt of the row ---------------------'

What is forced is read as part of the prompt: it is computed once for all rows of a group, in rollout and in update, and
none of its tokens is a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmrl.data.sample import Sample
from mmrl.environments.environment import Observation
from mmrl.environments.episode_batch import EpisodeBatch
from mmrl.errors import DataError
from mmrl.understanding.continuation import Continuation, Observed, followed
from mmrl.understanding.encoded_prompt import EncodedPrompt
from mmrl.understanding.observation_encoder import ObservationEncoder
from mmrl.understanding.vlm import VLM


@dataclass
class BegunEpisode:
    """The beginning of the episodes of one prompt."""

    sample: Sample
    prompt: EncodedPrompt  # made by `with_positions`, without the forced turns
    messages: list[dict[str, Any]]
    turns: tuple[str, ...]
    token_ids: list[int] = field(default_factory=list)  # of the forced turns, end to end
    observed: list[Observed] = field(default_factory=list)
    answered: list[tuple[str, Observation]] = field(default_factory=list)  # the turns and what was observed after each

    def whole_prompt(self, vlm: VLM, prefix: Sequence[int] = ()) -> EncodedPrompt:
        """Return the prompt, the forced turns and their observations, and the first tokens of the next turn."""
        if not self.token_ids:
            return self.prompt.followed_by(prefix, vlm.family)
        ids = torch.tensor([*self.token_ids, *prefix], dtype=torch.long)
        return followed(self.prompt, Continuation(ids, tuple(self.observed)), vlm.family)


def play_forced_turns(
    vlm: VLM,
    encoder: ObservationEncoder,
    episodes: EpisodeBatch,  # of R rows, which have not begun
    begun: Sequence[BegunEpisode],  # P
    prompt_of: Sequence[int],  # [R]
) -> None:
    """Let the environment answer the forced turns of all rows; `begun` gets their tokens and observations.

    Rows of one prompt get equal observations, since an episode is the same for the same actions; a void row gets those
    of the others.

    Raises:
        DataError: the environment ends an episode at a forced turn, or the model cannot take an observation.
    """
    for turn in range(max((len(each.turns) for each in begun), default=0)):
        live = [row for row in episodes.live if turn < len(begun[prompt_of[row]].turns)]
        steps = episodes.step({row: begun[prompt_of[row]].turns[turn] for row in live})
        answers: dict[int, Observation] = {}
        for row, step in steps.items():
            if step.observation is not None:
                answers.setdefault(prompt_of[row], step.observation)
            elif not episodes.is_void(row):
                each = begun[prompt_of[row]]
                raise DataError(
                    f"sample {each.sample.id!r}: the environment ended the episode at forced turn {turn + 1} of "
                    f"{len(each.turns)}, so there is none left for the policy"
                )
        for number, observation in answers.items():
            each = begun[number]
            each.token_ids += [*vlm.encode(each.turns[turn]), vlm.end]
            encoded, each.messages = encoder.encode(each.messages, observation, each.sample)
            each.observed.append(Observed(len(each.token_ids), encoded))
            each.answered.append((each.turns[turn], observation))
