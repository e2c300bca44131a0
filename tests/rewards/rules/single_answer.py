"""Helpers that score a single answer."""

from mmrl.rewards import RewardInput, Status


def ask(text, answer=None, metadata=None, **references):
    """An answer to score; `answer` is the reference."""
    known = references if answer is None else {"answer": answer, **references}
    return RewardInput(id="0", group=0, prompt="?", text=text, references=known, metadata=metadata or {})


def outcome(reward, text, answer=None, metadata=None, **references):
    """The value and the status."""
    output = reward.score([ask(text, answer, metadata, **references)])
    return float(output.values[reward.name][0]), output.status[reward.name][0]


def value(reward, text, answer=None, metadata=None, **references):
    """The value of an answer that must be scored."""
    number, status = outcome(reward, text, answer, metadata, **references)
    assert status is Status.OK, reward.score([ask(text, answer, metadata, **references)]).detail
    return number
