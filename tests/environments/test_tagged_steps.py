"""Tags of turns and their rules, decision trees over what is measured, and learnt contributions, on a made-up world."""

from __future__ import annotations

import pytest

from mmrl.config.environment import EnvironmentConfig
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step, build_environment
from mmrl.environments.rule_tree import RuledProgress
from mmrl.environments.tagged_steps import TaggedSteps, read_tag
from mmrl.errors import ConfigError

READER = MediaReader(MediaBudget())


class Doors:
    """Doors that open once; the answer of a sample is the one that wins."""

    name, max_turns, instructions, deadline_s = "doors", 4, "be quick", 2.0
    space = "pixel"

    def begin(self, sample, reader):
        return DoorsEpisode(str(sample.answer))

    def first_turns(self, sample):
        return ("<explore>a",) if sample.prompt == "begun" else ()


class DoorsEpisode:
    def __init__(self, wanted):
        self.wanted, self.seen = wanted, []

    def step(self, action):
        effect = action not in self.seen and action is not None
        self.seen.append(action)
        over = action is None or action == self.wanted
        return Step(None if over else Observation("nothing"), {"given": 2.0}, {"effect": float(effect), "late": 0.0})

    def outcome(self):
        return {"success": self.seen[-1] == self.wanted}


def played(*turns: str | None, wanted: str = "c"):
    episode = TaggedSteps(Doors()).begin(Sample("s", prompt="?", answer=wanted), READER)
    return [episode.step(turn) for turn in turns], episode.outcome()


@pytest.mark.parametrize("text, tag, action", [
    ("<explore>open 4", "explore", "open 4"), (" <plan> first 4, then 7 </plan>\nopen 4 ", "plan", "open 4"),
    ("<reflect>", "reflect", ""), ("open <plan>4", None, "open <plan>4"), ("<monitor>open 4", None, "<monitor>open 4"),
])  # fmt: skip
def test_a_tag_stands_first(text, tag, action):
    assert read_tag(text) == (tag, action)


def test_each_tag_has_its_rule():
    steps, outcome = played("<plan>a", "<explore>b", "<explore>b", "<reflect>b", "<reflect>c")
    named = [{name: value for name, value in step.rewards.items() if name != "given"} for step in steps]
    assert named == [{}, {"explore": 1.0}, {"explore": 0.0}, {"reflect": 0.0}, {"reflect": 1.0}]
    assert outcome["turn_rewards"] == {"plan": [1.0, 0.0, 0.0, 0.0, 0.0]}  # the episode is a success
    assert [step.info["tag"] for step in steps] == [0, 1, 1, 2, 2]
    assert outcome["repeated"] == pytest.approx(2 / 5)


def test_a_plan_that_fails_and_a_turn_without_a_tag():
    steps, outcome = played("<plan>a", "b")
    assert outcome["turn_rewards"] == {"plan": [0.0, 0.0]} and outcome["success"] is False
    assert steps[1].rewards == {"given": 2.0, "untagged": 1.0} and steps[1].info["tag"] == -1


def test_exploring_may_be_measured_by_the_environment():
    episode = TaggedSteps(Doors(), new="late").begin(Sample("s", answer="c"), READER)
    assert episode.step("<explore>a").rewards["explore"] == 0.0  # which says that nothing new was reached
    with pytest.raises(ConfigError, match="new is 'far', and of a turn are measured: effect, late"):
        TaggedSteps(Doors(), new="far").begin(Sample("s", answer="c"), READER).step("<explore>a")


def test_reflecting_needs_something_to_reflect_on():
    steps, _ = played("<reflect>a", "<reflect>b", "<explore>b", None)
    assert [step.rewards.get("reflect") for step in steps] == [0.0, 0.0, None, None]
    assert steps[3].rewards == {"given": 2.0, "untagged": 1.0}


def test_the_limits_are_those_of_the_environment_that_is_played():
    tagged = TaggedSteps(Doors(), max_turns=9)
    assert (tagged.max_turns, tagged.instructions, tagged.deadline_s, tagged.space) == (4, "be quick", 2.0, "pixel")
    assert (
        tagged.first_turns(Sample("s", prompt="begun")) == ("<explore>a",)
        and TaggedSteps(Doors(), max_turns=2).max_turns == 2
    )
    with pytest.raises(ConfigError, match="effect is 'gone', and of a turn are measured: effect, late"):
        TaggedSteps(Doors(), effect="gone").begin(Sample("s", answer="c"), READER).step("<plan>a")
    with pytest.raises(ConfigError, match="tagged: of is 'doors'"):
        TaggedSteps("doors")


def test_a_recipe_names_the_environment_that_is_played():
    section = {"name": "tagged", "args": {"of": {"name": "shapeworld_shop", "args": {"reflections": 1}}}}
    built = build_environment(EnvironmentConfig.model_validate(section))
    assert built.of.reflections == 1 and built.name == "tagged"


TREE = {"if": "effect", "then": {"if": "late", "over": 0.5, "then": 0.25, "else": 1}, "else": -0.5}


def test_a_tree_rewards_turns_by_what_is_measured():
    episode = RuledProgress(Doors(), TREE).begin(Sample("s", answer="c"), READER)
    assert [episode.step(action).rewards["progress"] for action in ("a", "a", "c")] == [1.0, -0.5, 1.0]
    assert episode.outcome() == {"success": True}


@pytest.mark.parametrize("tree, message", [
    ({"if": "effect", "then": 1}, "tree.else: Field required"),
    ({**TREE, "else": {"if": "late", "then": "much", "else": 0}}, "tree.else"),
    ({**TREE, "more": 1}, "tree.: Extra inputs"),
    ({**TREE, "else": float("nan")}, "finite"),
])  # fmt: skip
def test_trees_that_are_none_are_named(tree, message):
    with pytest.raises(ConfigError, match=message):
        RuledProgress(Doors(), tree)


def test_a_tree_that_asks_for_what_is_not_measured_is_named():
    with pytest.raises(ConfigError, match="asks for 'hit', and of a turn are measured: effect, late"):
        RuledProgress(Doors(), {**TREE, "if": "hit"}).begin(Sample("s", answer="c"), READER).step("a")
