"""Rollouts of several turns: write, step the environment, encode its observation, write on, for all rows of a call.

The first turn shares each prompt between the rows of its group. For a later turn the policy's own model keeps what it
has computed, and reads what is new (`dialogue.py`). Any other engine reads each row's whole sequence again: what it
gets is a prompt. Rows whose episode is over leave the loop.

The rows of a call may be written in several waves: the environment answers one wave while another is written, and the
wave whose answers are there first is written next. Neither the cuts nor the seeds of waves depend on how long an answer
takes, so equal seeds give equal rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Environment, Observation, Step
from mmrl.environments.episode_batch import EpisodeBatch, turn_rewards_of
from mmrl.errors import DataError
from mmrl.rewards.core.executor import DaemonPool
from mmrl.rollout import EndOfEpisode, EpisodeRecord, TurnReward
from mmrl.rollout_request import RowStart
from mmrl.seeds import fold_in
from mmrl.understanding.continuation import Continuation, Observed, followed, mixes_media, with_positions
from mmrl.understanding.dialogue import Dialogue
from mmrl.understanding.encoded_prompt import EncodedPrompt
from mmrl.understanding.forced_turns import BegunEpisode, play_forced_turns
from mmrl.understanding.observation_encoder import ObservationEncoder
from mmrl.understanding.rollout_engine import GeneratedTokens, RolloutEngine, TransformersEngine
from mmrl.understanding.vlm import VLM


@dataclass
class Trajectory:
    """A row: its tokens, observations and rewards so far."""

    sample: Sample
    prompt: EncodedPrompt
    messages: list[dict[str, Any]]
    prefix: str = ""  # the beginning of the first turn that the prompt ends with
    token_ids: list[int] = field(default_factory=list)  # own tokens of all turns
    log_probs: list[float] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    events: list[TurnReward] = field(default_factory=list)
    info: list[Mapping[str, float]] = field(default_factory=list)
    end: EndOfEpisode = EndOfEpisode.OVER
    forced: tuple[tuple[str, Observation], ...] = ()  # turns that the episode began with, and what followed each

    @property
    def last_step(self) -> Continuation:
        """The last turn, and the observation that followed it."""
        start = self.observed[-2].after if len(self.observed) > 1 else 0
        own = torch.tensor(self.token_ids[start:], dtype=torch.long)
        return Continuation(own, (replace(self.observed[-1], after=len(own)),))

    def record(self, outcome: Mapping[str, Any], environment: Environment) -> EpisodeRecord:
        """Return the record of the finished episode, with the turn rewards that its outcome brings."""
        late = turn_rewards_of(outcome, len(self.texts))
        return EpisodeRecord(
            texts=tuple(self.texts),
            observations=tuple(self.observations),
            outcome=outcome,
            events=(
                *self.events,
                *(TurnReward(turn, name, value) for name, values in late.items() for turn, value in enumerate(values)),
            ),
            info=tuple(self.info),
            end=self.end,
            space=getattr(environment, "space", None),
            forced=self.forced,
        )


@dataclass(eq=False)
class _Wave:
    """The rows of a call that are written together."""

    seed: int
    rows: list[Trajectory]
    prompts: list[EncodedPrompt]  # P, of the first turn
    counts: list[int]  # [P]; the number of rows of each
    episodes: EpisodeBatch
    scripted: Sequence[Sequence[Sequence[int]]] | None  # the tokens of each turn of each row; None: they are sampled
    turn: int = 0
    writing: list[int] = field(init=False)  # the rows that are not over
    wrote: list[int] = field(default_factory=list)  # the rows of `dialogue`
    dialogue: Dialogue | None = None
    pending: Future[dict[int, Step]] | None = None  # the answers of the environment to the last turn

    def __post_init__(self) -> None:
        self.writing = list(range(len(self.rows)))


@dataclass(frozen=True)
class TurnWriter:
    """Writes the trajectories of a call in an environment."""

    vlm: VLM
    engine: RolloutEngine
    encoder: ObservationEncoder
    environment: Environment
    reader: MediaReader
    context: int | None  # the most tokens of a sequence, prompt and observations included
    waves: int = 1

    def write(
        self,
        samples: Sequence[Sample],  # P
        prompts: Sequence[EncodedPrompt],  # P
        counts: Sequence[int],  # [P]; the number of rows of each
        sampling: TokenSamplingConfig,
        seed: int,
        starts: Sequence[RowStart | None] | None = None,  # P; `prompts` hold their prompts and prefixes, but no turns
        scripted: Sequence[Sequence[Sequence[int]]] | None = None,  # [B]; the tokens of each turn, instead of sampling
        max_turns: int | None = None,  # of an episode; None: as the environment says
    ) -> tuple[list[Trajectory], list[dict[str, Any]]]:
        """Return B = sum(counts) trajectories, ordered by prompt, and the outcomes of their episodes.

        Scripted turns are taken as they are, each with a log-probability of 0; an episode ends with the last of them.
        A row whose episode begins with forced turns has them in its prompt, and its texts, tokens and rewards are those
        of the turns that the policy wrote.

        Raises:
            DataError: a sample has not what the environment needs, the model cannot take an observation, or the
                environment ends an episode at a forced turn.
        """
        placed = [with_positions(self.vlm.model, self.vlm.family, prompt) for prompt in prompts]
        prompt_of = [number for number, count in enumerate(counts) for _ in range(count)]
        begun = [RowStart() if start is None else start for start in starts or [None] * len(samples)]
        rows = [
            Trajectory(
                samples[each],
                placed[each],
                self.encoder.begin(begun[each].sample(samples[each])),
                begun[each].prefix,
            )
            for each in prompt_of
        ]
        bounds = [len(rows) * wave // self.waves for wave in range(self.waves + 1)]
        waves = [
            _Wave(
                seed if not number else fold_in(seed, number, self.waves),
                rows[start:end],
                [prompts[each] for each in dict.fromkeys(prompt_of[start:end])],
                list(Counter(prompt_of[start:end]).values()),
                EpisodeBatch(self.environment, [row.sample for row in rows[start:end]], self.reader, max_turns),
                None if scripted is None else scripted[start:end],
            )
            for number, (start, end) in enumerate(pairwise(bounds))
            if start < end
        ]
        if any(start.turns for start in begun):
            numbers = [prompt_of[start:end] for start, end in pairwise(bounds) if start < end]
            for wave, of_rows in zip(waves, numbers, strict=True):
                self._force(wave, [begun[each].turns for each in dict.fromkeys(of_rows)], sampling.max_new_tokens)
        pool = DaemonPool(len(waves), "turns")
        queue = list(waves)
        while queue:
            wave = _first_answered(queue)
            queue.remove(wave)
            if wave.pending is not None:
                self._receive(wave, wave.pending.result(), sampling.max_new_tokens)
            if wave.writing:
                self._write_turn(wave, sampling)
                live = set(wave.episodes.live)  # an episode that broke down at a forced turn has no more steps
                actions = {number: self._action(wave.rows[number]) for number in wave.writing if number in live}
                wave.pending = pool.submit(partial(wave.episodes.step, actions))
                queue.append(wave)
        pool.close()
        return rows, [outcome for wave in waves for outcome in wave.episodes.outcomes()]

    def _force(self, wave: _Wave, forced: Sequence[Sequence[str]], room: int) -> None:
        """Let the environment answer the forced turns of a wave's prompts, and put them into the prompts."""
        prompt_of = [number for number, count in enumerate(wave.counts) for _ in range(count)]
        first = [wave.rows[prompt_of.index(number)] for number in range(len(forced))]
        begun = [
            BegunEpisode(row.sample, row.prompt, row.messages, tuple(turns))
            for row, turns in zip(first, forced, strict=True)
        ]
        play_forced_turns(self.vlm, self.encoder, wave.episodes, begun, prompt_of)
        for number, each in enumerate(begun):
            if not each.turns:
                continue
            prefix = first[number].prefix
            prompt = each.whole_prompt(self.vlm, self.vlm.encode(prefix) if prefix else [])
            if self.context is not None and prompt.length + room > self.context:
                raise DataError(
                    f"sample {each.sample.id!r}: after {len(each.turns)} forced turns its prompt has {prompt.length} "
                    f"tokens, which leaves no room for a turn of {room} in a context of {self.context}"
                )
            wave.prompts[number] = prompt
            for row in (row for row, own in zip(wave.rows, prompt_of, strict=True) if own == number):
                row.prompt, row.messages, row.forced = prompt, each.messages, tuple(each.answered)

    @cached_property
    def _ends(self) -> frozenset[int]:
        return frozenset(self.vlm.ends.tolist())

    def _write_turn(self, wave: _Wave, sampling: TokenSamplingConfig) -> None:
        """Write the next turn of all rows of a wave that are not over."""
        turn = wave.turn
        if wave.scripted is not None:
            generated = _as_generated([wave.scripted[number][turn] for number in wave.writing])
        elif turn:
            generated = self._follow(wave, sampling, fold_in(wave.seed, turn))
        else:
            generated = self.engine.generate(wave.prompts, wave.counts, sampling, wave.seed)
        wave.wrote, wave.dialogue = wave.writing, generated.dialogue
        for number, ids, log_probs in zip(wave.writing, generated.token_ids, generated.log_probs, strict=True):
            self._add_turn(wave.rows[number], ids, log_probs)
        wave.turn += 1

    def _follow(self, wave: _Wave, sampling: TokenSamplingConfig, seed: int) -> GeneratedTokens:
        """Return a later turn of all rows of a wave that are not over."""
        rows = [wave.rows[number] for number in wave.writing]
        if wave.dialogue is not None and isinstance(self.engine, TransformersEngine):
            places = [wave.wrote.index(number) for number in wave.writing]
            steps = [row.last_step for row in rows]
            prefix = wave.dialogue.read_on(self.vlm, places, steps, lambda place: self._read_so_far(rows[place]))
            if prefix is not None:
                return self.engine.write_on(prefix, sampling, seed)
        return self.engine.generate([self._read_so_far(row) for row in rows], [1] * len(rows), sampling, seed)

    def _receive(self, wave: _Wave, steps: Mapping[int, Step], room: int) -> None:
        """Add the environment's answers to the rows, and keep those that write another turn."""
        steps = {number: steps.get(number, Step(None)) for number in wave.writing}
        for number, step in steps.items():
            self._add_step(wave.rows[number], step)
        scripted = wave.scripted
        follow = [number for number in wave.writing if scripted is None or wave.turn < len(scripted[number])]
        wave.writing = [number for number in follow if self._observe(wave.rows[number], steps[number], room)]

    def _add_turn(self, row: Trajectory, ids: Sequence[int], log_probs: Sequence[float]) -> None:
        row.token_ids += ids
        row.log_probs += log_probs
        text = self.vlm.decode(list(ids), getattr(self.environment, "special_tokens", ()))
        row.texts.append(text if row.texts else row.prefix + text)
        if not ids or ids[-1] not in self._ends:
            row.end = EndOfEpisode.CUT_OFF

    def _action(self, row: Trajectory) -> str | None:
        """Return the text of the last turn; None if it was cut off."""
        return None if row.end is EndOfEpisode.CUT_OFF else row.texts[-1]

    def _add_step(self, row: Trajectory, step: Step) -> None:
        turn = len(row.texts) - 1
        row.events += [TurnReward(turn, name, float(value)) for name, value in step.rewards.items()]
        row.info.append(dict(step.info))

    def _observe(self, row: Trajectory, step: Step, room: int) -> bool:
        """Add the observation of a step to a row, and return True; False if no further turn follows.

        None follows where the environment showed nothing, where the last turn was cut off, or where another turn of
        `room` tokens might not fit into the context.
        """
        if step.observation is None or row.end is EndOfEpisode.CUT_OFF:
            return False
        encoded, messages = self.encoder.encode(row.messages, step.observation, row.sample)
        units = [row.prompt, *(each.observation.encoded for each in row.observed), encoded.encoded]
        if not self.vlm.family.mixes_media and mixes_media(units):
            raise DataError(
                f"an observation of sample {row.sample.id!r}: its trajectory holds images and videos, which "
                f"{type(self.vlm.model).__name__} does not take together"
            )
        seen = sum(each.observation.length for each in row.observed)
        length = row.prompt.length + len(row.token_ids) + seen + encoded.length
        if self.context is not None and length + room > self.context:
            row.end = EndOfEpisode.CONTEXT
            return False
        row.messages = messages
        row.observed.append(Observed(len(row.token_ids), encoded))
        row.observations.append(step.observation)
        return True

    def _read_so_far(self, row: Trajectory) -> EncodedPrompt:
        continuation = Continuation(torch.tensor(row.token_ids, dtype=torch.long), tuple(row.observed))
        return followed(row.prompt, continuation, self.vlm.family)


def _first_answered(queue: Sequence[_Wave]) -> _Wave:
    """Return the first wave that can be written, and wait until there is one."""
    pending = [wave.pending for wave in queue if wave.pending is not None]
    if len(pending) == len(queue):
        wait(pending, return_when=FIRST_COMPLETED)
    return next(wave for wave in queue if wave.pending is None or wave.pending.done())


def _as_generated(turns: Sequence[Sequence[int]]) -> GeneratedTokens:
    return GeneratedTokens([list(ids) for ids in turns], [[0.0] * len(ids) for ids in turns])
