"""`RolloutRequest` and `TargetText`: the samples that a policy answers, with the start of each row, cut into calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mmrl.data.sample import Sample


@dataclass(frozen=True)
class RowStart:
    """The start of some rows of a group, beside their sample: a forced beginning, another prompt, other limits.

    Rows that start alike are a sub-group. Nothing here is a decision of the policy, so none of it is learnt from; a
    beginning that is learnt from is a demonstration (`data.demonstrations`).

    Raises:
        ValueError: no token may be written, or none is sampled at the temperature.
    """

    label: str = ""
    """The name of the sub-group, in metrics and for rewards."""
    prefix: str = ""
    """The beginning of the answer. The prompt ends with it, and the text of the answer begins with it."""
    prompt: str | None = None
    """The text that the policy reads instead of the sample's. Rewards read the sample, with its own prompt."""
    max_new_tokens: int | None = None
    """The most tokens of an answer, or of each turn, after the prefix; None: as the policy's sampling says."""
    temperature: float | None = None
    """None: as the policy's sampling says."""
    turns: tuple[str, ...] = ()
    """The first turns of an episode."""

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens of a row's start is {self.max_new_tokens}: at least one token is written")
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(f"the temperature of a row's start is {self.temperature}: it must be above 0")

    @property
    def limits(self) -> tuple[int | None, float | None]:
        """The settings of sampling, which all rows of a call share."""
        return self.max_new_tokens, self.temperature

    def sample(self, sample: Sample) -> Sample:
        """Return the sample as the policy reads it: of a conversation, the text of the last user message is another."""
        if self.prompt is None:
            return sample
        places = [place for place, turn in enumerate(sample.messages) if turn.get("role", "user") == "user"]
        if not places:
            return replace(sample, prompt=self.prompt)
        messages = list(sample.messages)
        content = messages[places[-1]].get("content")
        text: Any = self.prompt
        if not isinstance(content, str):
            media = [part for part in content or () if part.get("type") in ("image", "video")]
            text = [*media, {"type": "text", "text": self.prompt}]
        messages[places[-1]] = {**messages[places[-1]], "content": text}
        return replace(sample, messages=tuple(messages))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, and the label; fit for JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        found = {name: value for name, value in values.items() if name == "label" or value not in ("", None, ())}
        return found | ({"turns": list(self.turns)} if self.turns else {})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RowStart:
        """Return the start that `as_dict` returned."""
        return cls(**{**values, "turns": tuple(values.get("turns", ()))})


@dataclass(frozen=True)
class PromptMixture:
    """A second prompt that guides the drawing of a sample, beside the sample's own (Parrot, arXiv:2401.05675)."""

    prompt: str
    share: float
    """Its share of the conditional prediction, in [0, 1]; the rest follows the sample's own prompt."""


@dataclass(frozen=True)
class RolloutRequest:
    """A request for `n` trajectories of one sample. Group sizes may differ between the requests of one call."""

    sample: Sample
    n: int
    group: int
    """The group these trajectories belong to; two requests may share a group (it was split over micro-batches, or its
    rows start differently)."""
    start: RowStart | None = None
    """The start of these trajectories; None: the sample alone. Its limits are equal for all requests of a call."""
    shared_seed: int | None = None
    """The seed of what all calls of an iteration share, such as which steps explore: a group may span two calls.
    None means the call's own seed."""
    iteration: int = 0
    """The number of finished training iterations; schedules of exploring steps read it."""
    keep_means: bool = False
    """True keeps the mean of each decision, as large as its latents (capability MOMENTS)."""
    max_turns: int | None = None
    """The largest number of actions of an episode; None: as its environment says. Equal for all requests of one
    call."""
    sampling: Any = None
    """The policy's own sampling configuration; None is its default. Equal for all requests of one call."""
    mixture: PromptMixture | None = None
    """A second prompt that guides what is drawn, for rollouts that are not learnt from; None: the sample's alone. Its
    share is equal for all requests of one call. Pipelines alone read it."""


@dataclass(frozen=True)
class TargetText:
    """A completion that the policy did not write: a demonstration, or one side of a preference pair."""

    sample: Sample
    text: str
    group: int
    token_ids: tuple[int, ...] | None = None
    """The exact tokens of the text; None tokenises `text` and appends an end token."""
    turns: tuple[str, ...] = ()
    """The texts of all turns of an episode, instead of `text`; the policy's environment answers them."""
    start: RowStart | None = None
    """The start of the row; the tokens are those after its prefix. Temperatures of a call are equal."""
    turn_tokens: tuple[tuple[int, ...], ...] = ()
    """The exact tokens of all turns of an episode, instead of `turns`."""
    prefix: str = ""
    """The beginning of the completion, before `text`: it is read, and none of its tokens is a decision."""


def batch_requests(
    samples: Sequence[Sample], n: int, rows: int, shared_seed: int | None = None, sampling: Any = None
) -> list[list[RolloutRequest]]:
    """Request n trajectories of each sample, in calls of at most `rows` trajectories (`chunk_requests`)."""
    requests = [
        RolloutRequest(sample, n, group, shared_seed=shared_seed, sampling=sampling)
        for group, sample in enumerate(samples)
    ]
    return chunk_requests(requests, rows)


def shared_sampling(requests: Sequence[RolloutRequest], default: Any) -> Any:
    """Return the sampling configuration of all requests of a call; `default` where they have none.

    Raises:
        ValueError: the configurations differ, or the limits of episodes do, so that one call cannot serve all.
    """
    if any(request.sampling != requests[0].sampling for request in requests):
        raise ValueError("requests of one call must share their sampling: make a call for each")
    if any(request.max_turns != requests[0].max_turns for request in requests):
        raise ValueError("requests of one call must share their max_turns: make a call for each")
    found = requests[0].sampling if requests else None
    return default if found is None else found


def row_starts(requests: Sequence[RolloutRequest]) -> list[RowStart | None] | None:
    """Return what each trajectory of a call starts with; None: every one with its sample alone."""
    found = [request.start for request in requests for _ in range(request.n)]
    return found if any(start is not None for start in found) else None


def chunk_requests(requests: Sequence[RolloutRequest], rows: int) -> list[list[RolloutRequest]]:
    """Split requests into calls of `rows` trajectories; a group may span two calls.

    A sample with conditions (images, videos) shares no call with other samples, and a request none with requests of
    other limits (`RowStart.limits`); their last calls may be shorter. Calls are in the order of their first requests.
    """
    calls: list[list[RolloutRequest]] = []
    last: dict[tuple[int | None, float | None], tuple[list[RolloutRequest], int]] = {}  # by limits, with its room
    for request in requests:
        limits = (None, None) if request.start is None else request.start.limits
        call, room = last.get(limits, ([], 0))
        left, room = request.n, 0 if request.sample.conditions else room
        while left:
            if not room:
                call, room = [], rows
                calls.append(call)
            now = min(left, room)
            call.append(replace(request, n=now))
            left, room = left - now, room - now
        last[limits] = (call, 0 if request.sample.conditions else room)
    return calls
