"""The board of groups: each group is answered exactly once, also where requests fail and servers end."""

from __future__ import annotations

import random

import pytest

from mmrl.understanding.serving.group_board import GroupBoard


def test_a_group_that_failed_goes_to_another_server_unless_it_is_alone():
    board: GroupBoard[str] = GroupBoard(1)
    assert board.take("a") == 0
    assert board.take("b") is None
    assert board.give_back(0) == 1
    assert board.take("a", alone=False) is None
    assert board.take("b", alone=False) == 0
    assert board.give_back(0) == 2
    assert board.take("a", alone=True) == 0


def test_groups_of_a_lost_server_come_first_and_are_counted():
    board: GroupBoard[str] = GroupBoard(4)
    assert [board.take("a"), board.take("b"), board.take("a")] == [0, 1, 2]
    assert board.lose("a") == 2 == board.dealt_again
    assert [board.take("b") for _ in range(3)] == [0, 2, 3]
    assert board.lose("c") == 0


def test_answers_that_come_twice_are_refused():
    board: GroupBoard[str] = GroupBoard(1)
    board.take("a")
    board.lose("a")
    with pytest.raises(ValueError, match="group 0 is with no server: its answers came twice"):
        board.finish(0, "late")
    assert board.take("b") == 0
    board.finish(0, "once")
    with pytest.raises(ValueError, match="came twice"):
        board.finish(0, "again")
    assert board.complete and board.answers() == ["once"]


@pytest.mark.parametrize("seed", range(50))
def test_every_group_is_answered_once_by_servers_that_fail_and_end(seed):
    chance, count = random.Random(seed), 12
    board: GroupBoard[tuple[int, str]] = GroupBoard(count)
    servers, taken, answered = ["a", "b", "c"], set(), []
    while not board.complete:
        server = chance.choice(servers)
        group = board.take(server, alone=len(servers) == 1)
        if group is not None:
            taken.add((server, group))
        event = chance.random()
        if taken and event < 0.5:
            server, group = chance.choice(sorted(taken))
            taken.discard((server, group))
            if event < 0.35:
                board.finish(group, (group, server))
                answered.append(group)
            else:
                board.give_back(group)
        elif event > 0.97 and len(servers) > 1:
            lost = servers.pop(chance.randrange(len(servers)))
            taken = {each for each in taken if each[0] != lost}
            board.lose(lost)
    assert sorted(answered) == list(range(count))
    assert [group for group, _ in board.answers()] == list(range(count))
