"""The toy shop: actions and their effects, the reflector, single steps, splits and shoppers."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.tagged_steps import read_tag
from mmrl.errors import ConfigError, DataError
from mmrl_shapeworld import splits
from mmrl_shapeworld.shop.careless_shopper import CARELESS, EXPERT, shop
from mmrl_shapeworld.shop.shop_environment import ShopEpisode, ShopTask, ToyShop
from mmrl_shapeworld.shop.shop_splits import (
    FURTHER,
    MADE,
    NAMES,
    OFFLINE,
    PIVOTS,
    PROFILED,
    STEPS,
    TAGGED,
    TRACE_STEPS,
    TRACES,
    UNSEEN,
    tasks,
)

READER = MediaReader(MediaBudget())
TASK = ShopTask("bread", (4, 1, 7), ("rope", "bread", "lamp"))


def played(*actions: str | None, reflections: int = 0):
    episode = ShopEpisode(TASK, reflections)
    seen = [step.observation and step.observation.text for step in map(episode.step, actions)]
    return seen, episode.outcome()


def test_who_finds_takes_and_pays_wins():
    seen, outcome = played("<plan>open 4", "open 1", "take", "<plan>pay")
    assert seen == ["none", "here", "got", None]
    assert outcome["success"] and outcome["found"] and (outcome["repeated"], outcome["wasted"]) == (0, 0)


def test_a_wrong_thing_has_to_be_put_back():
    seen, outcome = played("open 4", "take", "open 1", "put", "open 1")
    assert seen == ["none", "got", "no", "put", None]  # five actions are all that three shelves have
    assert outcome["ended"] == "actions" and outcome["wasted"] == pytest.approx(1 / 5)
    assert played("open 4", "take", "pay")[1]["success"] is False


@pytest.mark.parametrize("action", ["take", "put", "pay", "open 9", "open", "buy", "", "open 41", "open \u0661"])
def test_what_cannot_be_done_is_refused(action):
    seen, outcome = played(action)
    assert seen == ["no"] and outcome["wasted"] == 1.0


def test_a_shelf_that_is_opened_again_counts_as_repeated():
    episode = ShopEpisode(TASK)
    infos = [episode.step(action).info for action in ("open 7", "open 7", "open 1", "take")]
    assert [(info["effect"], info["repeated"], info["new"]) for info in infos] == [
        (1, 0, 1),
        (0, 1, 0),
        (1, 0, 1),
        (1, 0, 0),
    ]
    assert (infos[2]["found"], infos[3]["taken"], infos[3]["grabbed"]) == (1, 1, 0)
    assert episode.outcome()["repeated"] == 1 / 4


def test_the_reflector_sends_useless_actions_back_before_they_cost_anything():
    seen, outcome = played("open 7", "open 7", "pay", "open 7", reflections=2)
    assert seen == ["none", "again", "again", "none"]
    assert (outcome["reflected"], outcome["actions"], outcome["repeated"]) == (2, 2, 0.5)
    assert ToyShop(reflections=5).max_turns == ToyShop().max_turns + 3
    with pytest.raises(ConfigError, match="reflections is -1"):
        ToyShop(reflections=-1)


def test_a_turn_that_was_cut_off_ends_the_episode():
    assert played("open 7", None)[1]["ended"] == "cut_off"


def test_the_level_says_how_much_of_the_task_is_done_and_falls_when_the_thing_is_put_back():
    episode = ShopEpisode(TASK, level=True, spare_actions=6)
    actions = ("open 4", "open 1", "open 4", "take", "put", "open 1", "take", "open 7", "pay")
    levels = [episode.step(action).rewards["level"] for action in actions]
    assert levels == [0, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1]  # nine actions: three shelves and six
    assert episode.outcome()["success"]
    plain = ShopEpisode(TASK)
    assert plain.step("open 1").rewards == {}


def test_spare_actions_are_those_beyond_the_shelves():
    episode = ShopEpisode(TASK, spare_actions=4)
    steps = [episode.step("open 4") for _ in range(7)]
    assert [step.observation is None for step in steps] == [False] * 6 + [True]
    assert ToyShop(spare_actions=6).max_turns == ToyShop().max_turns + 4
    with pytest.raises(ConfigError, match="spare_actions is 1"):
        ToyShop(spare_actions=1)


def test_a_single_step_is_right_if_it_is_the_recorded_one():
    chosen = [sample for sample in splits.samples(STEPS)[:40] if sample.metadata["start"] == 2]
    shop_of = ToyShop()
    for sample in chosen:
        recorded = sample.metadata["recorded"]
        assert shop_of.first_turns(sample) == tuple(recorded[:2])
        for action, right in ((recorded[2].replace("<explore>", "<plan>"), True), ("put", False)):
            episode = shop_of.begin(sample, READER)
            for each in recorded[:2]:
                assert episode.step(each).observation is not None
            assert episode.step(action).observation is None
            assert episode.outcome()["success"] is right


@pytest.mark.parametrize(
    ("recorded", "action", "equivalent"),
    [
        (("open 4", "open 7"), "open 7", True),
        (("open 4", "open 7"), "<explore>open 1", True),
        (("open 4", "open 7"), "open 4", False),  # was opened before
        (("open 4", "open 7"), "open 9", False),  # is not there
        (("open 4", "open 7"), "take", False),
        (("open 1", "take"), "take", True),
        (("open 1", "take"), "open 7", False),
        (("open 1", "take", "pay"), "pay", True),
        (("open 1", "take", "pay"), "put", False),
    ],
)
def test_a_single_step_that_does_the_same_counts_if_equivalent_ones_do(recorded, action, equivalent):
    last = len(recorded) - 1
    sample = Sample("one", answer=TASK.as_dict(), metadata={"start": last, "recorded": list(recorded)})
    for match, right in (("equivalent", equivalent), ("exact", action == recorded[last])):
        episode = ToyShop(match=match).begin(sample, READER)
        for each in recorded[:last]:
            assert episode.step(each).observation is not None
        step = episode.step(action)
        assert step.observation is None and step.rewards == {"match": float(right)}
        assert episode.outcome()["success"] is right
    with pytest.raises(ConfigError, match="match is 'same'; it is exact or equivalent"):
        ToyShop(match="same")


TRACE = Sample("trace", answer=TASK.as_dict(), metadata={"recorded": ["open 4", "open 1", "take", "pay"]})


def along(*actions: str | None, **args):
    episode = ToyShop(**args).begin(TRACE, READER)
    steps = [episode.step(action) for action in actions]
    return [step.observation and step.observation.text for step in steps], steps, episode.outcome()


def test_along_a_trace_every_action_counts_that_is_the_recorded_one_after_its_tag():
    seen, steps, outcome = along("open 4", "<plan>open 1", "take", "<explore>pay")
    assert seen == ["none", "here", "got", None]
    assert [step.rewards for step in steps] == [{"match": 1.0}] * 4
    assert outcome["success"] and (outcome["progress"], outcome["patched"], outcome["ended"]) == (1, 0, "steps")
    assert ToyShop().first_turns(TRACE) == ()


def test_another_action_along_a_trace_ends_it_or_is_followed_by_the_recorded_one_by_name():
    seen, _, outcome = along("open 4", "open 7")
    assert seen == ["none", None] and outcome["ended"] == "mismatch" and outcome["progress"] == 1 / 4
    seen, steps, outcome = along("open 7", "<plan>take", "take", "put", mismatch="patch", max_patches=2)
    assert seen == ["open 4 none", "open 1 here", "got", None]
    assert [step.rewards["match"] for step in steps] == [0, 0, 1, 0]
    assert (outcome["success"], outcome["patched"], outcome["ended"]) == (False, 2, "mismatch")
    assert along("open 7", "open 7", mismatch="patch")[0] == ["open 4 none", None]
    assert along("open 4", "open 1", "take", "put", mismatch="patch")[2]["ended"] == "steps"
    assert along("open 4", None, mismatch="patch")[2]["ended"] == "cut_off"
    for wrong in ({"mismatch": "ignore"}, {"mismatch": "patch", "max_patches": 0}):
        with pytest.raises(ConfigError, match=r"mismatch is .* max_patches"):
            ToyShop(**wrong)


def test_traces_of_the_expert_have_no_tags_and_their_steps_begin_after_the_recorded_ones():
    for trace in splits.samples("shop-traces-train")[:20]:
        turns = trace.metadata["recorded"]
        assert not any(turn.startswith("<") for turn in turns)
        episode = ToyShop().begin(trace, READER)
        assert [episode.step(turn).observation is None for turn in turns][-1] and episode.outcome()["success"]
    offline = splits.samples("shop-offline-validation")
    assert offline[0].source == "traces" and offline[0].answer == splits.samples("shop-validation")[0].answer
    count = len(offline[0].metadata["recorded"])
    assert [each.metadata["start"] for each in offline[1 : count + 1]] == list(range(count))
    steps = splits.samples("shop-traces-steps-train")
    assert len(steps) == sum(len(each.metadata["recorded"]) for each in splits.samples("shop-traces-train"))


def test_pivots_are_some_of_the_profiled_steps():
    profiled, pivots = splits.samples(PROFILED), splits.samples(PIVOTS)
    assert {each.id for each in pivots} < {each.id for each in profiled} < {each.id for each in splits.samples(STEPS)}
    assert len({each.id.partition("-step-")[0] for each in profiled}) == 200


@pytest.mark.integration
def test_splits_differ_and_the_larger_shops_want_unseen_things():
    prompts = {
        name: {str(task) for task in tasks(name)} for name in ("shop-train", "shop-development", "shop-validation")
    }
    assert len(set.union(*prompts.values())) == sum(map(len, prompts.values()))
    for name in NAMES:
        if name in (STEPS, PROFILED, PIVOTS, TAGGED, TRACES, TRACE_STEPS) or name in MADE or name in OFFLINE:
            continue
        for sample in splits.samples(name)[:50]:
            task = ShopTask.from_dict(sample.answer)
            assert (task.wanted in UNSEEN) == name.endswith("ood")
            assert len(task.shelves) == 6 if name.endswith("ood") else len(task.shelves) in (4, 5)
            assert sample.prompt == task.prompt and len(set(task.items)) == len(task.items)
    assert FURTHER["shop-second-ood"] == ("shop-ood",)
    assert FURTHER["shop-third-ood"] == ("shop-ood", "shop-second-ood")
    for further, known in FURTHER.items():
        for earlier in known:
            assert len(tasks(further)) == len(tasks(earlier)) and not set(tasks(further)) & set(tasks(earlier))
    plain, reflected = splits.samples("shop-ood"), splits.samples("shop-reflected-ood")
    assert [each.id for each in plain] == [each.id for each in reflected]
    assert reflected[0].metadata == {"reflections": 2} and plain[0].metadata == {}


def test_tags_of_the_tagged_shopper_say_what_a_turn_is_for():
    found = splits.samples(TAGGED)
    assert [each.id for each in found] == [each.id for each in splits.samples("shop-train")]
    for sample in found[:50]:
        turns = sample.demonstration["turns"]
        assert turns[0].startswith("<plan>open ")
        for turn in turns[1:]:
            tag, action = read_tag(turn)
            if action == "put":
                assert tag == "reflect"
            elif action.startswith("open"):
                assert tag in ("explore", "reflect")  # after an answer of `no` it recovers
            elif tag != "reflect":
                assert tag == "plan"


def test_an_expert_always_wins_and_a_careless_shopper_seldom():
    rng = np.random.default_rng(0)
    for name in ("shop-validation", "shop-ood"):
        outcomes = {
            who: [shop(task, who, rng)[2].outcome() for task in tasks(name)[:256]] for who in (EXPERT, CARELESS)
        }
        assert all(each["success"] and not each["wasted"] for each in outcomes[EXPERT])
        assert 0.1 < np.mean([each["success"] for each in outcomes[CARELESS]]) < 0.5
        assert 0.2 < np.mean([each["repeated"] for each in outcomes[CARELESS]]) < 0.5


@pytest.mark.parametrize("change", [{"items": ["bread"]}, {"wanted": "jam"}, {"shelves": [1, 1, 2]}, None])
def test_a_sample_of_another_kind_is_named(change):
    answer = None if change is None else {**TASK.as_dict(), **change}
    with pytest.raises(DataError, match=r"'other'.*shapeworld:shop-train"):
        ToyShop().begin(Sample("other", answer=answer), READER)


def test_demonstrations_that_the_model_made_succeed():
    for name in MADE:
        found = splits.samples(name)
        assert 100 < len(found) < 400
        for sample in found[:100]:
            episode = ToyShop().begin(sample, READER)
            assert all(episode.step(turn).observation is not None for turn in sample.demonstration["turns"][:-1])
            assert episode.step(sample.demonstration["turns"][-1]).observation is None
            assert episode.outcome()["success"]
