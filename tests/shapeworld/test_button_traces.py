"""Recorded traces of the screens of buttons: whole ones, single steps, and the curriculum."""

from __future__ import annotations

import pytest

from mmrl.environments.recorded_steps import steps_of
from mmrl.errors import ConfigError, DataError
from mmrl_shapeworld import splits
from mmrl_shapeworld.vqa.canvas import png_uri
from mmrl_shapeworld.worlds.button_environment import ButtonScreens
from mmrl_shapeworld.worlds.button_screens import ScreenTask, draw_buttons


def test_each_step_of_a_trace_is_a_sample():
    traces, steps = (splits.samples(f"screens-traces{every}-development") for every in ("", "-steps"))
    assert len(steps) == sum(len(steps_of(trace).steps) for trace in traces)
    assert [steps_of(step).start for step in steps[:4]] == [0, 1, 2, 3]
    assert len({step.id for step in steps}) == len(steps)


@pytest.mark.integration
def test_the_curriculum_is_the_traces_and_then_the_tasks():
    found = splits.samples("screens-curriculum-train")
    assert [sample.metadata["stage"] for sample in found] == [0] * 1200 + [1] * 1200
    assert ["steps" in sample.metadata for sample in found] == [True] * 1200 + [False] * 1200
    assert len({sample.id for sample in found}) == 2400


@pytest.mark.integration
def test_annotators_are_known_by_name():
    task, other = splits.samples("screens-development")[0], splits.samples("vlm-development")[0]
    world = ButtonScreens()
    assert world.record(task, "careless", 3) == world.record(task, "careless", 3) != world.record(task, "careless", 4)
    with pytest.raises(ConfigError, match="no annotator 'lazy'"):
        world.record(task, "lazy", 0)
    with pytest.raises(DataError, match="no task of screens"):
        world.record(other, "expert", 0)


def test_offline_metrics_have_whole_traces_and_single_steps():
    found = splits.samples("screens-offline-development")
    traces = [place for place, sample in enumerate(found) if sample.source == "traces"]
    assert len(traces) == 256 and traces[0] == 0
    assert [steps_of(step).end for step in found[1 : traces[1]]] == list(range(1, traces[1]))
    assert {sample.source for sample in found} == {"traces", "steps"}


def test_one_of_two_right_buttons_is_labelled():
    labelled, true = (splits.samples(f"screens-{name}-development") for name in ("one-label", "all-labels"))
    assert [sample.id for sample in labelled] == [sample.id for sample in true]
    places = []
    for one, both in zip(labelled, true, strict=True):
        steps, all_steps = steps_of(one), steps_of(both)
        own, truth = steps.steps[steps.start], all_steps.steps[all_steps.start]
        assert len(own.boxes) == 1 and len(truth.boxes) == 2
        places.append(truth.boxes.index(own.boxes[0]))
        assert [s for s in steps.steps if s is not own] == [s for s in all_steps.steps if s is not truth]
        (x1, y1, x2, y2), (x, y) = own.boxes[0], own.point
        assert x1 <= x <= x2 and y1 <= y <= y2 and own.written == f"{x:g}, {y:g}"
    assert 0.4 < sum(places) / len(places) < 0.6  # no habit tells which
    steps = splits.samples("screens-traces-steps-train")
    train = splits.samples("screens-one-label-train")
    assert len({sample.id for sample in train}) == len(train) > 0.25 * len(steps)


@pytest.mark.integration
def test_one_of_four_right_buttons_is_labelled():
    """The picture before the step is the screen whose boxes the label is one of, and the others stay as recorded."""
    plain, many = (splits.samples(f"screens-{name}-development") for name in ("traces-steps", "one-of-many"))
    assert [sample.id for sample in plain] == [sample.id for sample in many]
    places = []
    for old, new in zip(plain, many, strict=True):
        before, after = steps_of(old), steps_of(new)
        task, own = ScreenTask.from_dict(new.answer), after.steps[after.start]
        screen = draw_buttons(task, after.start, right=4)
        assert {name for name, _ in screen.buttons} == {task.targets[after.start]}
        picture = new.images[0] if after.start == 0 else after.steps[after.start - 1].screen
        assert png_uri(screen.picture) == picture
        (box,) = own.boxes
        places.append([each for _, each in screen.buttons].index(box))
        assert after.steps[after.start + 1 :] == before.steps[after.start + 1 :]
        assert [s.written for s in after.steps[: after.start]] == [s.written for s in before.steps[: after.start]]
    assert all(0.2 < places.count(place) / len(places) < 0.3 for place in range(4))  # no habit tells which
