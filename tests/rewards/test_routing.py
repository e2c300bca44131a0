"""Each answer is scored by what its sample asks for, and by nothing else."""

from __future__ import annotations

import itertools
import json
import math
import socket
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.data.sample import RewardChoice, Sample
from mmrl.rewards import (
    GroupReward,
    Reward,
    RewardError,
    RewardSuite,
    ScoreCache,
    ScoringFailed,
    Status,
    TooFewScored,
    WeightedReward,
    reward_input,
)
from mmrl.rewards.core.routing import RoutedRewards, SharedLoader, distinct_choices


class Equals(Reward):
    """1 where the text is the answer."""

    name, needs, range = "equals", ("text", "references.answer"), (0.0, 1.0)

    def score_one(self, item):
        return float(item.text == item.references["answer"])


class Longer(Reward):
    """1 where the text has more letters than a number; counts its calls and remembers how many answers it saw."""

    name, needs, range = "longer", ("text",), (0.0, 1.0)

    def __init__(self, than: int = 0) -> None:
        self.than, self.seen, self.calls = than, 0, 0
        self._inside = threading.Lock()

    def score(self, batch, context=None):
        if not self._inside.acquire(blocking=False):
            raise AssertionError("called twice at the same time")
        with_lock = super().score(batch, context)
        self._inside.release()
        self.calls += 1
        return with_lock

    def score_one(self, item):
        if item.text == "down":
            raise ScoringFailed("the scorer is down", "http_503")
        self.seen += 1
        return float(len(item.text) > self.than)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = int(state.get("seen", 0))


class Rank(GroupReward):
    """The share of a group's answers that are shorter."""

    name, needs, range = "rank", ("text",), (0.0, 1.0)

    def score_group(self, items):
        return [sum(len(other.text) < len(item.text) for other in items) / len(items) for item in items]


KINDS = {"equals": Equals, "longer": Longer, "rank": Rank}
EQUALS = (RewardChoice("equals"),)
LONG = (RewardChoice("longer", 2.0, {"than": 2}),)
LONGER = (RewardChoice("longer", 0.5, {"than": 4}), RewardChoice("equals", 0.5))
CHOICES = [EQUALS, LONG, LONGER]


def loader():
    made: dict[str, Reward] = {}

    def load(name, **args):
        return made.setdefault(f"{name}{args}", KINDS[name](**args))

    load.made = made
    return load


def asking(chosen, text, group=0, answer="yes", source="s"):
    sample = Sample(id=f"{source}{group}", prompt="p", answer=answer, rewards=chosen, source=source)
    return reward_input(sample, text, group, f"{group}/{text}")


@pytest.fixture
def routed():
    made = []

    def make(default=(), choices=(EQUALS, LONG, LONGER), **settings):
        load = settings.pop("load", None) or loader()
        made.append(
            RoutedRewards([WeightedReward(load(name), 1.0) for name in default], choices, load=load, **settings)
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_answers_get_their_requested_rewards_and_a_total(routed):
    batch = [asking(EQUALS, "yes"), asking(LONG, "abc"), asking(LONGER, "yes"), asking((), "yesyes"), asking(LONG, "a")]
    output = routed(default=["longer"]).score(batch)
    nan = math.nan
    np.testing.assert_array_equal(output.values["equals"], [1, nan, 1, nan, nan])
    np.testing.assert_array_equal(output.values["longer"], [nan, 1, 0, 1, 0])
    np.testing.assert_array_equal(output.values["total"], [1, 2, 0.5, 1, 0])
    assert [status.value for status in output.status["equals"]] == ["ok", "not_asked", "ok", "not_asked", "not_asked"]
    assert list(output.values)[-1] == "total"


def test_rewards_not_requested_are_neither_failed_nor_unscored(routed):
    rewards = routed(min_valid_share=1.0)
    output = rewards.score([asking(EQUALS, "no"), asking(LONG, "abc")])
    rewards.check_valid_share(output)
    assert rewards.valid_share(output) == 1.0 and rewards.failures(output) == {}
    assert rewards.counts(output) == {"equals": {"ok": 1}, "longer": {"ok": 1}}


def test_failures_are_counted_for_requesting_rows(routed):
    rewards = routed(min_valid_share=0.6)
    output = rewards.score([asking(LONG, "down"), asking(EQUALS, "down"), asking(LONGER, "down")])
    assert rewards.failures(output) == {"longer": {"http_503": 2}}
    assert output.status["total"] == [Status.ERROR, Status.OK, Status.ERROR]
    with pytest.raises(TooFewScored, match=r"only 33% .*http_503"):
        rewards.check_valid_share(output)


@pytest.mark.integration
@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from(CHOICES), st.sampled_from(["yes", "a", "abcde", "down"])), min_size=1),
    st.integers(1, 4),
)
def test_routed_scores_equal_those_of_separate_suites(rows, pieces):
    load = loader()
    rewards = RoutedRewards([], [EQUALS, LONG, LONGER], load=load)
    batch = [asking(chosen, text, group) for group, (chosen, text) in enumerate(rows)]
    cuts = np.linspace(0, len(batch), pieces + 1).astype(int)
    output = rewards.join([rewards.submit(batch[a:b]) for a, b in itertools.pairwise(cuts)])
    for row, (chosen, _) in enumerate(rows):
        alone = RewardSuite([WeightedReward(KINDS[each.name](**each.args), each.weight, retries=0) for each in chosen])
        expected = alone.score([batch[row]])
        for name, column in output.values.items():
            np.testing.assert_array_equal(column[[row]], expected.values.get(name, [math.nan]))
            assert [output.status[name][row]] == expected.status.get(name, [Status.NOT_APPLICABLE])
        assert output.failures[row] == expected.failures[0] and output.detail[row] == expected.detail[0]
        alone.close()
    rewards.close()


def test_equal_rewards_are_called_once_per_batch(routed):
    load = loader()
    other = (RewardChoice("longer", 7.0, {"than": 2}), RewardChoice("equals"))
    rewards = routed(choices=[EQUALS, LONG, other], load=load)
    rewards.join([rewards.submit([asking(LONG, "abc"), asking(other, "abc")]) for _ in range(20)])
    shared = load.made["longer{'than': 2}"]
    assert len(load.made) == 2 and shared.calls == 20 and shared.seen == 40


def test_group_rewards_see_their_own_groups(routed):
    ranked = (RewardChoice("rank"),)
    rewards = routed(choices=[ranked, EQUALS])
    output = rewards.score([asking(ranked, text, len(text) % 2) for text in ("a", "ab", "abc", "abcd")])
    assert rewards.needs_full_groups and output.values["rank"].tolist() == [0.0, 0.0, 0.5, 0.5]
    assert not routed().needs_full_groups


def test_order_of_choices_makes_no_other_route():
    one = Sample(id="1", rewards=LONGER)
    other = Sample(id="2", rewards=LONGER[::-1])
    assert len(distinct_choices([one, other, Sample(id="3"), Sample(id="4", rewards=LONG)])) == 2


def test_unknown_choices_and_missing_rewards_raise_by_name(routed):
    with pytest.raises(RewardError, match=r"answer '0/x' asks for longer with arguments or weights that were not"):
        routed(choices=[EQUALS]).score([asking(LONG, "x")])
    with pytest.raises(RewardError, match="asks for no rewards, and the run has none"):
        routed().score([asking((), "x")])
    with pytest.raises(RewardError, match="there are no rewards"):
        RoutedRewards([], [])
    with pytest.raises(RewardError, match="two rewards called longer"):
        routed(choices=[(LONG[0], LONGER[0])])
    with pytest.raises(RewardError, match="plain values"):
        distinct_choices([Sample(id="1", rewards=(RewardChoice("longer", args={"than": {1}}),))])


def test_heldout_rewards_score_every_answer_without_changing_totals(routed):
    load = loader()
    rewards = routed(monitored=[WeightedReward(load("rank"), 0.0)], load=load)
    output = rewards.score([asking(EQUALS, "yes", 0), asking(LONG, "abc", 1)])
    assert output.values["rank"].tolist() == [0, 0] and output.values["total"].tolist() == [1, 2]
    with pytest.raises(RewardError, match="weight 0, unlike rank"):
        routed(monitored=[WeightedReward(load("rank"), 1.0)])


def test_weights_are_those_that_all_routes_share(routed):
    assert routed(choices=[EQUALS, LONG]).weights == {"equals": 1.0, "longer": 2.0}
    assert routed().weights == {}
    assert routed(default=["equals"], choices=[]).uniform and not routed().uniform


def test_reward_state_is_saved_once_and_resumed(routed):
    load = loader()
    rewards = routed(default=["longer"], choices=[LONG, LONGER], load=load)
    rewards.score([asking((), "abc"), asking(LONG, "abc"), asking(LONG, "abc"), asking(LONGER, "abc")])
    state = json.loads(json.dumps(rewards.state_dict()))
    assert state == {"longer": {"seen": 1}, 'longer {"than": 2}': {"seen": 2}, 'longer {"than": 4}': {"seen": 1}}
    fresh = loader()
    routed(default=["longer"], choices=[LONG, LONGER], load=fresh).load_state_dict(state)
    assert fresh.made["longer{'than': 2}"].seen == 2
    with pytest.raises(RewardError, match="which neither the run nor a sample names"):
        routed().load_state_dict({"clock": {}})


def test_cached_scores_are_found_across_routes(tmp_path):
    load = loader()
    cache = ScoreCache(tmp_path / "scores")
    for choices in (EQUALS, (RewardChoice("equals", 3.0), RewardChoice("rank"))):
        rewards = RoutedRewards([], [choices], load=load, cache=cache)
        rewards.score([asking(choices, "yes")])
        rewards.close()
    assert cache.hits == 1
    cache.close()


def test_shared_loader_returns_one_instance_for_equal_arguments():
    load = SharedLoader()
    assert load("soft_overlong", limit=20, cache=4) is load("soft_overlong", cache=4, limit=20)
    assert load("soft_overlong", limit=20, cache=4) is not load("soft_overlong", limit=21, cache=4)


@pytest.mark.parametrize("name", ["mine.py:evil", "/tmp/mine.py", "..\\mine.py:evil", "package:evil", "a/b"])
def test_datasets_cannot_run_code_of_a_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('run')\n")
    chosen = (RewardChoice("equals"), RewardChoice(name))
    with pytest.raises(RewardError, match=r"sample 's7' asks for the reward .* by name alone"):
        distinct_choices([Sample(id="s7", rewards=chosen)])
    with pytest.raises(RewardError, match="by name alone"):
        RoutedRewards([], [chosen])


@pytest.mark.parametrize(
    "choice",
    [
        RewardChoice("thinking_mode", args={"of": "mine.py:evil"}),
        RewardChoice("hybrid", args={"rule": "maths", "model": "mine.py:evil"}),
        RewardChoice("progressive", args={"stages": [{"reward": "parseable", "args": {"of": "mine:evil"}}]}),
    ],
)
def test_datasets_cannot_run_code_through_the_arguments_of_a_reward(choice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('run')\n")
    with pytest.raises(RewardError, match=r"a sample asks for the reward 'mine.*evil': .* by name alone"):
        RoutedRewards([], [(choice,)])


@pytest.mark.parametrize(
    "choice",
    [
        RewardChoice("remote", args={"url": "URL", "reward": "any", "api_key_env": "SECRET", "timeout_s": 0.5}),
        RewardChoice(
            "hybrid",
            args={
                "rule": "maths",
                "model": "judge",
                "model_args": {"model": "m", "base_url": "URL", "api_key_env": "SECRET"},
            },
        ),
    ],
)
def test_datasets_send_no_key_anywhere(choice, monkeypatch):
    monkeypatch.setenv("SECRET", "the-key-of-another-server")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        args = json.loads(json.dumps(choice.args).replace("URL", url))
        with pytest.raises(RewardError, match="which sends answers to a server: name it in the run's own"):
            RoutedRewards([], [(RewardChoice(choice.name, args=args),)])
        with pytest.raises(TimeoutError):
            server.accept()


def test_datasets_cannot_set_the_address_of_a_server():
    args = {"model": "m", "base_url": "http://127.0.0.1:1/v1"}
    chosen, load = (RewardChoice("judge", args=args),), SharedLoader()
    with pytest.raises(RewardError, match="'judge', which sends answers to a server: name it in the run's own"):
        RoutedRewards([], [chosen], load=load)
    allowed = RoutedRewards([WeightedReward(load("judge", **args), 0.0), WeightedReward(Equals())], [chosen], load=load)
    assert not allowed.uniform
    allowed.close()
