"""The experiment with traffic that changes: one drafter recovers, and the answers are the same."""

from __future__ import annotations

import pytest

from mmrl_shapeworld.drafted_answers import switched_traffic


@pytest.mark.integration
def test_a_drafter_that_learns_recovers_from_a_change_of_questions(monkeypatch):
    for name, value in (("CALLS", 3), ("QUESTIONS", 6), ("LAST", 1)):
        monkeypatch.setattr(f"mmrl_shapeworld.drafted_answers.{name}", value)
    online, static = switched_traffic(0), switched_traffic(0, relearn=False)
    assert online["tokens"] == static["tokens"]
    assert online["before"] == static["before"] and online["switch"] == static["switch"]
    assert online["after"][0] > static["after"][0] + 0.02
    assert online["tokens_per_pass"] > static["tokens_per_pass"]
