"""The environment `recorded`: what counts as the recorded action, and how an episode goes on after another one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmrl.config.environment import EnvironmentConfig
from mmrl.data.jsonl import write_samples
from mmrl.data.media.sample_media import media_of
from mmrl.data.sample import Sample
from mmrl.data.sources import load_source
from mmrl.environments import EpisodeBatch, build_environment
from mmrl.environments.recorded_steps import RecordedStep, steps_of
from mmrl.environments.step_judge import ScreenSize, StepJudge
from mmrl.errors import ConfigError, DataError
from mmrl_shapeworld import splits
from tests.environments.worlds import READER, small_reader

STEPS = [
    {"action": "click", "point": [50, 80], "boxes": [[40, 60, 60, 100], [0, 0, 10, 10]], "screen": "1.png"},
    {"action": "type", "text": "fast trains", "screen": "2.png"},
    {"action": "scroll", "text": "down", "screen": "3.png"},
    {"action": "long_press", "point": [100, 100], "screen": "4.png"},
    {"action": "finished"},
]
RIGHT = [
    "click(5, 5)",
    '{"action": "type", "text": "fast trains"}',
    "scroll(direction='DOWN')",
    '{"action": "long_press", "point": [110, 110]}',
    "finished()",
]


@pytest.fixture
def sample(tmp_path):
    for number in range(5):
        Image.fromarray(np.full((200, 200, 3), 40 * number, np.uint8)).save(tmp_path / f"{number}.png")
    one = Sample("a", prompt="Search.", images=("0.png",), metadata={"space": "pixel", "steps": STEPS})
    write_samples([one], tmp_path / "traces.jsonl")
    return load_source(str(tmp_path / "traces.jsonl"))[0]


def play(sample, actions, reader=READER, **args):
    environment = build_environment(EnvironmentConfig(name="recorded", args=args))
    batch = EpisodeBatch(environment, [sample], reader)
    steps = []
    for action in actions:
        if batch.live:
            steps.append(batch.step({0: action})[0])
    return steps, batch.outcomes()[0]


def brightness(step):
    return int(np.asarray(step.observation.images[0])[0, 0, 0])


def test_right_actions_show_the_recorded_screens(sample):
    steps, outcome = play(sample, RIGHT)
    assert [step.rewards["match"] for step in steps] == [1.0] * 5
    assert [brightness(step) for step in steps[:-1]] == [40, 80, 120, 160] and steps[-1].observation is None
    assert outcome["success"] and outcome["progress"] == outcome["prefix"] == 1 and outcome["ended"] == "steps"
    assert list(media_of(sample))[1:] == [
        ("image", str(sample.images[0]).replace("0.png", f"{n}.png")) for n in range(1, 5)
    ]


def test_end_stops_at_the_first_mismatch(sample):
    steps, outcome = play(sample, [RIGHT[0], "click(1, 1)", *RIGHT[2:]])
    assert len(steps) == 2 and steps[1].rewards == {"match": 0.0, "kind": 0.0, "valid": 1.0}
    assert outcome["prefix"] == outcome["progress"] == 0.2 and outcome["ended"] == "mismatch"


def test_patch_names_the_recorded_action_and_goes_on(sample):
    wrong = ["click(150, 5)", RIGHT[1], "nonsense", *RIGHT[3:]]
    steps, outcome = play(sample, wrong, mismatch="patch", max_patches=2, patch_text="It was {action}.")
    assert steps[0].observation.text == 'It was {"action": "click", "point": [50, 80]}.'
    assert steps[1].observation.text == "" and steps[2].observation.text.endswith('"text": "down"}.')
    assert brightness(steps[0]) == 40 and outcome["patched"] == 2 and outcome["matches"] == 3
    assert not outcome["success"] and outcome["prefix"] == 0 and outcome["progress"] == 0.6
    steps, outcome = play(sample, wrong, mismatch="patch")
    assert len(steps) == 3 and outcome["patched"] == 1 and outcome["ended"] == "mismatch"


def test_an_episode_begins_after_the_steps_that_are_read_as_recorded(sample):
    later = replace(sample, metadata={**sample.metadata, "start": 2, "end": 4})
    environment = build_environment(EnvironmentConfig(name="recorded"))
    assert environment.first_turns(later) == (
        '{"action": "click", "point": [50, 80]}', '{"action": "type", "text": "fast trains"}'
    ) and environment.first_turns(sample) == ()  # fmt: skip
    steps, outcome = play(later, ["anything", "at all", *RIGHT[2:]])
    assert [step.rewards.get("match") for step in steps] == [None, None, 1.0, 1.0] and steps[3].observation is None
    assert outcome["success"] and outcome["steps"] == outcome["matches"] == 2
    steps, outcome = play(later, ["x", "x", "x"])
    assert outcome["ended"] == "mismatch" and outcome["progress"] == 0 and outcome["steps"] == 2


def test_ignore_goes_on_in_silence_to_the_end(sample):
    steps, outcome = play(sample, ["x"] * 5, mismatch="ignore")
    assert [step.observation is None for step in steps] == [False] * 4 + [True]
    assert {step.observation.text for step in steps[:-1]} == {""} and outcome["ended"] == "steps"
    assert outcome["matches"] == 0 and play(sample, ["x"] * 5, mismatch="ignore", max_turns=2)[1]["ended"] == "turns"


def test_a_turn_that_was_cut_off_ends_the_episode(sample):
    steps, outcome = play(sample, [None], mismatch="ignore")
    assert steps[0].observation is None and outcome["ended"] == "cut_off" and outcome["matches"] == 0


SIZE = ScreenSize((200.0, 400.0), (100.0, 200.0))


@pytest.mark.parametrize(
    ("action", "space", "match"),
    [
        ("20, 40", "pixel", True),  # pixels of the screen as it is seen, half of the file's
        ("40, 80", "pixel", False),
        ("click(200, 200)", "norm_1000", True),
        ("tap(0.2, 0.2)", "norm_1", True),
        ("long_press(0.2, 0.2)", "norm_1", False),
        ("click(300, 400), click(1, 1)", "norm_1000", False),
        ("<think>1, 1</think>20, 40", "pixel", True),
        ("20", "pixel", False),
    ],
)
def test_a_click_counts_in_any_box_in_any_space(action, space, match):
    step = RecordedStep(action="click", boxes=((0.0, 0.0, 1.0, 1.0), (30.0, 60.0, 50.0, 100.0)))
    assert StepJudge().judge(action, step, "pixel", space, lambda: SIZE).match == match


def test_without_boxes_a_click_counts_near_the_recorded_point():
    step = RecordedStep(action="click", point=(100.0, 200.0))
    judged = {
        each: StepJudge(distance=0.1).judge(f"{each}, 500", step, "pixel", "norm_1000", lambda: SIZE).match
        for each in (500, 599, 601)
    }
    assert judged == {500: True, 599: True, 601: False}


def test_texts_count_by_words_or_letter_by_letter():
    step = RecordedStep(action="type", text="fast trains")
    near = "type('trains fast today')"  # F1 0.8
    assert not StepJudge().judge(near, step, "norm_1", "norm_1", lambda: SIZE).match
    assert StepJudge(least_f1=0.8).judge(near, step, "norm_1", "norm_1", lambda: SIZE).match
    verdict = StepJudge("exact").judge("20, 41", RecordedStep(action="click", written="20, 40"), "pixel", "pixel", None)
    assert verdict.valid and verdict.kind and not verdict.match
    assert (
        StepJudge("exact").judge("20, 40", RecordedStep(action="click", written="20, 40"), "pixel", "pixel", None).match
    )


def test_pixels_are_those_of_the_policys_own_input(sample):
    (step, *_), _ = play(sample, ["24, 40"], reader=small_reader(10_000))  # 100 x 100 of 200 x 200
    assert step.rewards["match"] == 1 and step.observation.images[0].size == (100, 100)
    reader = small_reader(10_000)
    reader.resized_by_model = lambda size: (50.0, 25.0)  # a processor with limits by itself
    (step, *_), _ = play(sample, ["12, 10"], reader=reader)
    assert step.rewards["match"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": []}, "expected a list of 1 to 1000 recorded steps"),
        ({"steps": [{"action": "click", "box": [1, 2, 3, 4]}]}, "steps.0.box: Extra inputs"),
        ({"steps": [{"action": "click", "point": ["1", 2]}]}, "steps.0.point.0: Input should be a valid number"),
        ({"steps": [{"action": "click", "point": [1, float("nan")]}]}, "not finite"),
        ({"steps": [{"action": "click"}, {"action": "click"}]}, "steps.0: has no screen"),
        ({"start": 5}, "metadata.start is 5, and metadata.end 5; expected numbers of steps from 0 to 5"),
        ({"start": 1, "end": 1}, "with at least one between them"),
        ({"space": "mm"}, "metadata.space is 'mm'"),
        ({"steps": [{"action": "click", "boxes": [[9, 9, 1, 1]]}]}, "swapped"),
    ],
)
def test_a_malformed_trace_is_one_message(sample, change, message):
    with pytest.raises(DataError, match=message):
        steps_of(replace(sample, metadata={**sample.metadata, **change}))


def test_settings_are_checked():
    for args in ({"mismatch": "stop"}, {"distance": -1}, {"max_patches": 0}, {"space": "mm"}, {"least_f1": 0}):
        with pytest.raises(ConfigError, match="recorded: "):
            build_environment(EnvironmentConfig(name="recorded", args=args))


@pytest.mark.integration
def test_samples_without_steps_are_played_live():
    live = {"name": "mmrl_shapeworld.worlds.button_environment:ButtonScreens"}
    environment = build_environment(EnvironmentConfig(name="recorded", args={"live": live}))
    trace, task = splits.samples("screens-traces-development")[0], splits.samples("screens-development")[0]
    turns = trace.demonstration["turns"]
    for sample, key in ((trace, "prefix"), (task, "clicks")):
        batch = EpisodeBatch(environment, [sample], READER)
        for action in turns:
            batch.step({0: action})
        assert batch.outcomes()[0]["success"] and key in batch.outcomes()[0]
    with pytest.raises(DataError, match=r"metadata\.steps"):
        EpisodeBatch(build_environment(EnvironmentConfig(name="recorded")), [task], READER)


@pytest.mark.integration
def test_traces_of_the_careless_annotator_show_every_button_that_was_right():
    found = splits.samples("screens-careless-development")[:80]
    outcomes = [play(sample, sample.demonstration["turns"], mismatch="ignore")[1] for sample in found]
    share = np.mean([outcome["matches"] / outcome["steps"] for outcome in outcomes])
    assert 0.5 < share < 0.75  # hits of the careless annotator: docs/shapeworld.md
    assert any(len(step["boxes"]) == 2 for sample in found for step in sample.metadata["steps"])
