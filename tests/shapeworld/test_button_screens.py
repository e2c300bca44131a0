"""Screens of buttons over several turns: right clicks, dead ends, and actions that decide everything."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.data.jsonl import read_samples, write_samples
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import EpisodeBatch, load_environment
from mmrl.errors import ConfigError, DataError
from mmrl_shapeworld.splits import captions, samples
from mmrl_shapeworld.vqa.canvas import NUMBERS, PIXELS, colours_of
from mmrl_shapeworld.worlds.button_environment import ButtonEpisode, ButtonScreens, outcome_of
from mmrl_shapeworld.worlds.button_screens import BACK, LENGTHS, ScreenTask, draw_buttons
from mmrl_shapeworld.worlds.button_splits import NAMES, SIZES, careless, expert, tasks, trace
from mmrl_shapeworld.worlds.screens import SEEN_SKINS, UNSEEN_SKINS

READER = MediaReader(MediaBudget())
TASK = ScreenTask("light", 7, ("red", "blue", "red"), clicks=5, dead_ends=True)


def middle(screen, name):
    x1, y1, x2, y2 = next(box for each, box in screen.buttons if each == name)
    return (x1 + x2) // 2, (y1 + y2) // 2


def wrong(episode):
    """Return a click on a button that is not wanted."""
    name = next(name for name, _ in episode.screen.buttons if name != episode.wanted)
    return "{}, {}".format(*middle(episode.screen, name))


@pytest.mark.slow
def test_the_expert_wins_with_no_click_too_many():
    for name in NAMES:
        for task in tasks(name)[:100]:
            outcome = outcome_of(task, trace(task, expert))
            assert outcome["success"] and outcome["clicks"] == outcome["hits"] == len(task.targets)


@pytest.mark.slow
def test_careless_traces_are_neither_at_floor_nor_ceiling_and_chance_is_near_floor():
    rng = np.random.default_rng(0)
    chosen = tasks("screens-validation")
    success = np.mean([outcome_of(task, trace(task, careless(rng)))["success"] for task in chosen])
    chance = np.mean(
        [outcome_of(task, [f"{x}, {y}" for x, y in rng.integers(0, 57, (9, 2))])["success"] for task in chosen]
    )
    assert 0.4 < success < 0.75 and chance < 0.05


def test_right_clicks_lead_on_and_a_dead_end_leads_back():
    episode = ButtonEpisode(TASK)
    first = episode.screen
    step = episode.step(expert(episode))
    assert step.rewards == {"progress": 1.0} and episode.done == 1 and episode.screen.buttons != first.buttons
    second = episode.screen
    step = episode.step(wrong(episode))
    assert step.rewards == {"progress": 0.0} and [name for name, _ in episode.screen.buttons] == [BACK]
    step = episode.step(expert(episode))  # the way back
    assert step.rewards == {"progress": 0.0} and step.info == {"hit": 1.0, "valid": 1.0}
    assert episode.screen.buttons == second.buttons
    episode.step(expert(episode))
    assert episode.step(expert(episode)).observation is None
    assert episode.outcome() == {
        "success": True, "progress": 1.0, "ended": "success", "clicks": 5, "hits": 4, "invalid": 0, "dead_ends": 1,
    }  # fmt: skip


@pytest.mark.integration
def test_entering_dead_ends_does_not_pay():
    """The sum of the turns' rewards is the number of targets done, on any way through an episode."""
    rng = np.random.default_rng(1)
    for task in tasks("screens-train")[:200]:
        episode, total = ButtonEpisode(task), 0.0
        annotate = careless(rng)
        while True:
            step = episode.step(annotate(episode))
            total += step.rewards["progress"]
            if step.observation is None:
                break
        assert total == episode.outcome()["progress"] * len(task.targets)


def test_without_dead_ends_a_wrong_button_changes_nothing():
    episode = ButtonEpisode(ScreenTask("dark", 3, ("green", "red"), clicks=4, dead_ends=False))
    before = episode.screen
    step = episode.step(wrong(episode))
    assert np.array_equal(np.asarray(step.observation.images[0]), colours_of(before.picture))
    assert episode.outcome()["dead_ends"] == 0


@pytest.mark.integration
def test_either_of_two_buttons_of_the_colour_is_right():
    doubled = 0
    for task in tasks("screens-validation"):
        screen = draw_buttons(task, 0)
        right = [name for name, _ in screen.buttons].count(task.targets[0])
        assert right in (1, 2)
        if right == 2:
            doubled += 1
            for name, (x1, y1, x2, y2) in screen.buttons:
                if name == task.targets[0]:
                    assert ButtonEpisode(task).step(f"{(x1 + x2) // 2}, {(y1 + y2) // 2}").info["hit"] == 1.0
    assert 0.2 < doubled / len(tasks("screens-validation")) < 0.4


@pytest.mark.integration
def test_buttons_have_their_colour_and_do_not_touch():
    for name in NAMES:
        for task in tasks(name)[:50]:
            for done in range(len(task.targets)):
                screen = draw_buttons(task, done)
                taken = np.zeros((PIXELS, PIXELS), int)
                for colour, (x1, y1, x2, y2) in screen.buttons:
                    assert 0 <= x1 < x2 <= PIXELS and 0 <= y1 < y2 <= PIXELS
                    assert (screen.picture[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1] == NUMBERS[colour]).all()
                    taken[y1:y2, x1:x2] += 1
                assert taken.max() == 1


def test_spare_clicks_and_the_level_are_arguments():
    sample = Sample("s", answer=TASK.as_dict())
    episode = ButtonScreens(spare_clicks=4, level=True).begin(sample, READER)
    assert episode.task.clicks == 7 and ButtonScreens(spare_clicks=4).max_turns == max(LENGTHS) + 4
    levels = []
    for action in ("0, 0", expert, expert, "0, 0", None):
        levels.append(episode.step(action(episode) if callable(action) else action).rewards["level"])
    assert levels == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3, 2 / 3])
    assert ButtonScreens().begin(sample, READER).task == TASK
    with pytest.raises(ConfigError, match="spare_clicks is -1"):
        ButtonScreens(spare_clicks=-1)


def test_stopping_before_the_end_pays_if_the_level_is_a_reward():
    """The trap of dense rewards: the sum of levels is larger for an episode that never ends than for one that wins."""
    task = ScreenTask("light", 7, ("red", "blue"), clicks=6, dead_ends=False)
    totals = []
    for actions in ([expert, expert], [expert, *["0, 0"] * 5]):
        episode = ButtonEpisode(task, level=True)
        steps = [episode.step(action(episode) if callable(action) else action) for action in actions]
        assert steps[-1].observation is None
        totals.append(sum(step.rewards["level"] for step in steps) + episode.outcome()["success"])
    assert totals == [2.5, 3.0]


@pytest.mark.parametrize("form", ["{x}, {y}", "click({x}, {y})", "[{x}, {y}]",
                                  '{{"action": "click", "point": [{x}, {y}]}}',
                                  '{{"x": {x}, "y": {y}}}', "<think>red</think>{x}, {y}"])  # fmt: skip
def test_forms_of_a_click(form):
    episode = ButtonEpisode(TASK)
    x, y = middle(episode.screen, "red")
    assert episode.step(form.format(x=x, y=y)).info == {"hit": 1.0, "valid": 1.0}


def test_clicks_in_thousandths():
    episode = load_environment("mmrl_shapeworld.worlds.button_environment:ButtonScreens", space="norm_1000").begin(
        Sample("s", answer=TASK.as_dict()), READER
    )
    x, y = middle(episode.screen, "red")
    assert episode.step(f"{round(x / PIXELS * 1000)}, {round(y / PIXELS * 1000)}").info["hit"] == 1.0
    with pytest.raises(ConfigError, match="space"):
        ButtonScreens(space="cm")


@pytest.mark.parametrize("text", ["", "here", "1", "1, 2, 3", "900, 900", "-5, 3",
                                  '{"action": "type", "point": [1, 2]}',
                                  '{"action": "click", "point": [1, 2], "path": "x"}', "nan, nan", "1" * 5_000,
                                  "[" * 1_900, "\uff11, \uff12", "\x00"])  # fmt: skip
def test_texts_that_are_no_click_cost_a_click(text):
    episode = ButtonEpisode(TASK)
    step = episode.step(text)
    assert step.info == {"hit": 0.0, "valid": 0.0} and episode.outcome()["invalid"] == 1
    assert episode.outcome()["clicks"] == 1 and step.observation is not None


@pytest.mark.integration
@given(actions=st.lists(st.text(max_size=30) | st.none(), max_size=12))
def test_any_actions_end_within_the_clicks_and_give_the_same_twice(actions):
    first, second = outcome_of(TASK, actions), outcome_of(TASK, actions)
    assert first == second and first["clicks"] <= TASK.clicks


@pytest.mark.slow
def test_splits_share_no_screen_and_are_always_the_same():
    seen = {}
    for name in NAMES:
        part = name.split("-")[1]
        assert len(samples(name)) == SIZES[part]
        for sample, task in zip(samples(name), tasks(name), strict=True):
            key = (task.prompt, sample.images[0])
            assert seen.setdefault(key, name) == name
            assert ScreenTask.from_dict(sample.answer) == task
            assert task.skin in (UNSEEN_SKINS if part == "ood" else SEEN_SKINS)
        assert {sample.source for sample in samples(name)} == {f"screens-{length}" for length in LENGTHS}
        short = samples(name.replace("screens-", "screens-short-"))
        assert short == [sample for sample in samples(name) if sample.source in ("screens-2", "screens-3")]
    assert zlib.crc32("".join(sample.images[0] for sample in samples("screens-validation")).encode()) == 852496062
    with pytest.raises(KeyError, match="screens-train"):
        captions("screens-nowhere")


@pytest.mark.slow
def test_the_sample_shows_the_first_screen_of_its_episode(tmp_path):
    sample = samples("screens-train")[3]
    picture = READER.image(sample.images[0])
    assert np.array_equal(np.asarray(picture), np.asarray(ButtonEpisode(ScreenTask.from_dict(sample.answer)).picture()))
    write_samples([sample], tmp_path / "data.jsonl")  # and it survives a file
    (again,) = read_samples(tmp_path / "data.jsonl")
    assert ButtonScreens().begin(again, READER).task == tasks("screens-train")[3]


@pytest.mark.integration
def test_demonstrations_are_actions_that_replay():
    chosen = samples("screens-train")[:200]
    outcomes = [outcome_of(ScreenTask.from_dict(s.answer), s.demonstration["turns"]) for s in chosen]
    assert all(outcome["clicks"] == len(s.demonstration["turns"]) for s, outcome in zip(chosen, outcomes, strict=True))
    assert 0.4 < np.mean([outcome["success"] for outcome in outcomes]) < 0.75
    assert all(sample.demonstration is None for sample in samples("screens-validation"))


@pytest.mark.parametrize("answer", [None, "red", {}, {**TASK.as_dict(), "skin": "neon"},
                                    {**TASK.as_dict(), "targets": []},
                                    {**TASK.as_dict(), "more": 1}, {**TASK.as_dict(), "clicks": 0}])  # fmt: skip
def test_a_sample_of_another_kind_is_named(answer):
    with pytest.raises(DataError, match="'other'"):
        ButtonScreens().begin(Sample("other", answer=answer), READER)


def test_a_batch_of_experts_wins():
    chosen = [sample for sample in samples("screens-validation")[:32]]
    batch = EpisodeBatch(ButtonScreens(), chosen, READER)
    while batch.live:
        batch.step({row: expert(batch._episodes[row]) for row in batch.live})
    assert all(outcome["success"] and outcome["void"] is None for outcome in batch.outcomes())
    assert batch.turns == [len(task.targets) for task in tasks("screens-validation")[:32]]
