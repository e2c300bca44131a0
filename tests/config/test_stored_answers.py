"""Settings of `a_lol` that are refused before a model is loaded."""

from __future__ import annotations

import pytest

from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.loading.load import parse_config
from mmrl.config.validation import validation_errors

TEXT = "{name: tiny, policy: {kind: vlm, model: 'shapeworld:sums'}, data: {path: 'shapeworld:sums-train', groups: 4}}"


def errors(*overrides: str) -> str:
    config = parse_config(TEXT, "tiny.yaml", ["algorithm={name: a_lol}", *overrides])
    return "\n".join(validation_errors(config))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.advantage={name: rloo}"], "algorithm.advantage: that of a_lol is the reward less"),
        (["algorithm.mismatch={cap: 2.0}"], "algorithm.mismatch: a_lol learns from no engine's answers"),
        (["rewards=[{name: numeric}, {name: length, at_least: 0.1}]"], "rewards: at_least adds to advantages"),
        (["data.replay={name: selective}"], "data.replay: a_lol learns from answers in the data set"),
        (["data.demonstrations={share: 1.0}"], "data.demonstrations: a_lol learns from answers in the data set"),
        (["run.overlap.lag=1"], "a_lol learns from answers and samples no answers"),
    ],
)
def test_what_stored_answers_do_not_have_is_refused(overrides, message):
    assert message in errors(*overrides)


def test_an_iteration_has_one_answer_for_each_place():
    config = parse_config(TEXT, "tiny.yaml", ["algorithm={name: a_lol}", "rewards=[{name: numeric}]"])
    assert BatchPlan.of(config).trajectories == 4 and not errors("rewards=[{name: numeric}]")


def test_pictures_are_refused():
    policy, data = "policy: {kind: pipeline, model: shapeworld}", "data: {path: 'shapeworld:train'}"
    text = f"{{name: tiny, {policy}, rewards: [{{name: shapeworld}}], {data}}}"
    config = parse_config(text, "tiny.yaml", ["algorithm={name: a_lol}"])
    assert "a_lol learns from texts in the data" in "\n".join(validation_errors(config))
