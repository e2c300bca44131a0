"""Every reward of the registry has a control: a right answer that it scores, and hostile ones that are worse."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest

from mmrl.rewards import GroupReward, Reward, Status, available
from mmrl.rewards.core.registry import BUILT_IN

from . import media_controls, model_controls, text_controls
from .controls import Control, Place, written

CONTROLS: dict[str, Control] = {**text_controls.CONTROLS, **media_controls.CONTROLS, **model_controls.CONTROLS}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with ExitStack() as stack:
        yield Place(tmp_path_factory.mktemp("rewards"), stack)


def test_no_reward_is_without_a_control():
    shipped = {name for name in available() if name in BUILT_IN or name.startswith("shapeworld")}
    assert sorted(shipped - CONTROLS.keys()) == []
    assert sorted(CONTROLS.keys() - shipped) == []


def check(control: Control, reward: Reward) -> None:
    """Raise unless the right answer has a score, which hostile ones neither reach nor change."""
    own, spec = reward.name, reward.spec
    alone = reward.score(control.rows(control.right, 0), control.context)
    best = float(alone.values[own][0])
    assert alone.status[own][0] is Status.OK and spec.range[0] <= best <= spec.range[1], alone.detail
    for number, hostile in enumerate(control.hostile, 1):
        rows = [*control.rows(control.right, 0), *control.rows(hostile, number)]
        output = reward.score(rows, control.context)
        row = len(rows) // 2
        value, status = float(output.values[own][row]), output.status[own][row]
        assert output.values[own][0] == pytest.approx(best, rel=1e-4, abs=1e-4), f"{hostile} changed another answer"
        if status is Status.ERROR:
            assert math.isnan(value) and (math.isinf(spec.worst) or not control.ranks), output.detail[row]
        elif control.ranks:
            assert status in (Status.OK, Status.INVALID) and spec.sign * value < spec.sign * best, (hostile, value)
        else:
            assert status is Status.INVALID and value == spec.worst, (hostile, status)


@pytest.mark.parametrize("name", CONTROLS)
def test_the_right_answer_is_scored_and_hostile_ones_are_worse_or_malformed(place, name):
    if name == "rendered_text":
        pytest.importorskip("rapidocr_onnxruntime", reason="the extra [ocr]")
    check(CONTROLS[name], CONTROLS[name].build(place))


class Careless(Reward):
    """A reward that any text earns."""

    name, needs, range = "careless", ("text",), (0.0, 1.0)

    def score_one(self, item):
        return 1.0


class Relative(GroupReward):
    """A reward that an answer loses where others are longer."""

    name, needs, range = "relative", ("text",), (0.0, 1.0)

    def score(self, batch, context=None):
        longest = max(len(item.text) for item in batch)
        output = super().score(batch, context)
        output.values[self.name][:] = [len(item.text) / longest for item in batch]
        return output

    def score_group(self, items):
        return [1.0] * len(items)


def test_controls_fail_for_rewards_that_are_careless_or_let_groups_touch():
    control = Control(lambda place: Careless(), written("right"), [written("wrong!!")])
    with pytest.raises(AssertionError):
        check(control, Careless())
    with pytest.raises(AssertionError, match="changed another answer"):
        check(control, Relative())
