"""Names that a misspelt one may have meant."""

from __future__ import annotations

from mmrl.suggestions import did_you_mean

NAMES = ["quickstart", "flow-grpo", "flow-cps-sd35", "flux-dev-lora"]


def test_the_nearest_names_come_first_and_others_not_at_all():
    assert did_you_mean("quikstart", NAMES) == "did you mean quickstart?"
    assert did_you_mean("flow-cps", NAMES, count=2) == "did you mean flow-cps-sd35 or flow-grpo?"
    assert did_you_mean("flow-cps", NAMES, count=2, likeness=0.9) == ""
    assert did_you_mean("quikstart", NAMES, before=": ") == ": did you mean quickstart?"
    assert did_you_mean("xyzzy", NAMES, before=": ") == did_you_mean("a", []) == ""
