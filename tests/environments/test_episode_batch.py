"""Rows of a batch are stepped at once; one that fails is void and costs the others nothing."""

from __future__ import annotations

import time

import pytest

from mmrl.components import load_reference
from mmrl.data.sample import Sample
from mmrl.environments import EpisodeBatch
from mmrl.environments.episode_batch import error_of
from mmrl.errors import DataError
from tests.environments.worlds import READER, Countdown


def batch_of(rows: int, deadline_s: float | None = None) -> EpisodeBatch:
    return EpisodeBatch(Countdown(deadline_s), [Sample(str(n), prompt=str(n)) for n in range(rows)], READER)


def test_rows_end_at_their_own_turns():
    batch = batch_of(3)
    steps = batch.step({0: "0", 1: "5", 2: "5"})
    assert steps[0].observation is None and steps[0].rewards == {"closer": 1.0}
    assert steps[1].observation.text == "not 5" and steps[1].info == {"length": 1}
    assert batch.live == [1, 2]
    batch.step({2: "2"})
    batch.step({1: None})
    assert batch.live == [] and batch.turns == [1, 2, 2]
    assert batch.outcomes() == [
        {"void": None, "success": True},
        {"void": None, "success": False},
        {"void": None, "success": True},
    ]
    with pytest.raises(ValueError, match="rows \\[0\\] are over"):
        batch.step({0: "0"})


def test_the_turn_cap_ends_a_row_and_keeps_its_last_rewards():
    batch = batch_of(1)
    for _ in range(4):
        assert batch.step({0: "7"})[0].observation is not None
    last = batch.step({0: "77"})[0]
    assert last.observation is None and last.info == {"length": 2}
    assert batch.live == [] and batch.outcomes() == [{"void": None, "success": False}]


def test_slow_rows_wait_at_once():
    batch = batch_of(64)
    started = time.perf_counter()
    batch.step(dict.fromkeys(range(64), "sleep 0.2"))
    assert time.perf_counter() - started < 1.5  # one after the other they take 13 s


def test_a_row_that_hangs_raises_or_exits_is_void_by_kind():
    batch = batch_of(5, deadline_s=0.4)
    started = time.perf_counter()
    steps = batch.step({0: "sleep 30", 1: "raise", 2: "exit", 3: "nonsense", 4: "4"})
    assert time.perf_counter() - started < 5
    assert all(step.observation is None for step in steps.values()) and batch.live == []
    outcomes = batch.outcomes()
    assert [outcome["void"] for outcome in outcomes] == ["timeout", "error", "error", "error", None]
    assert outcomes[1]["detail"] == "RuntimeError: the world broke down"
    assert "0.4 s" in outcomes[0]["detail"] and outcomes[4]["success"]


class Unready(Countdown):
    """A world whose episodes do not begin."""

    def begin(self, sample, reader):
        return 1 / 0 if sample.id == "0" else object()


def test_an_environment_that_raises_as_it_begins_is_named_with_the_sample():
    with pytest.raises(DataError, match=r"^sample '0': the environment .* could not begin: ZeroDivisionError"):
        EpisodeBatch(Unready(None), [Sample("0", prompt="0")], READER)


def test_an_episode_without_the_methods_of_one_is_named_with_the_sample():
    with pytest.raises(DataError, match=r"^sample '1': begin .* returned object, which has no method step and no"):
        EpisodeBatch(Unready(None), [Sample("1", prompt="1")], READER)


def test_equal_actions_give_equal_steps():
    first, second = batch_of(4), batch_of(4)
    for actions in ({n: str(9 - n) for n in range(4)}, {n: str(n) for n in range(4)}):
        assert first.step(actions) == second.step(actions)
    assert first.outcomes() == second.outcomes()


def test_an_error_in_a_users_file_is_recorded_with_its_line(tmp_path):
    file = tmp_path / "world.py"
    file.write_text("def step(action):\n    raise KeyError(action)\n")
    step = load_reference(f"{file}:step")
    with pytest.raises(KeyError) as raised:
        step("left")
    assert error_of(raised.value) == ("error", "KeyError: 'left' (world.py, line 2)")
