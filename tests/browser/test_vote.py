"""Votes made in a real browser become pairs that a trainer learns from."""

from __future__ import annotations

import json
import re

from mmrl.build.datasets import load_samples
from mmrl.config.loading.load import load_config
from mmrl.workflows.train import train

UNPICTURED = "(element) => element.innerHTML.replaceAll(/data:[^\"]*/g, '')"
NAMES = re.compile(r"seed-0@|\bbase\b")


def seen(page, place):
    """Return the visible elements of a selector: each kind of vote has a separate tab."""
    return page.locator(place).locator("visible=true").first


def vote(page, verdict):
    """A new pair, and a vote on it; what is said then."""
    seen(page, "#mm-new-pair").click()
    seen(page, f"#mm-{verdict}:not([disabled])").wait_for()
    output = seen(page, "#mm-ballot")
    assert not NAMES.search(output.inner_text()) and not NAMES.search(output.evaluate(UNPICTURED))  # no model is named
    seen(page, f"#mm-{verdict}").click()
    page.locator(f"#mm-{verdict}[disabled]").locator("visible=true").first.wait_for()
    return seen(page, "#mm-vote-result").inner_text()


def test_image_votes_are_written_as_preference_pairs(visit, pictured, site, tmp_path):
    page = visit(tab="Blind vote")
    for label in page.locator("#mm-voters label:has(input[type=checkbox])").locator("visible=true").all():
        label.locator("input").set_checked(label.inner_text().strip() in ("base", "draw/seed-0@20"))
    seen(page, "#mm-new-pair").click()
    seen(page, "#mm-better-left:not([disabled])").wait_for()
    pictured(page, "vote")
    message = [vote(page, verdict) for verdict in ("better-left", "better-right", "tie", "both_bad")]
    assert "Kept as a preference pair" in message[0] and "base" in message[0] and "draw/seed-0@20" in message[0]
    assert (
        "prefers neither" in message[2] and "2 preference pairs" in message[3] and "2 ties and both-bad" in message[3]
    )
    pictured(page, "voted")

    pairs = load_samples(str(site.votes))
    assert len(pairs) == 2 and all(pair.chosen != pair.rejected for pair in pairs)
    undecided = [json.loads(line) for line in (site.votes.parent / "votes.undecided.jsonl").read_text().splitlines()]
    assert [line["metadata"]["vote"]["verdict"] for line in undecided] == ["tie", "both_bad"]
    changes = ["algorithm={name: dpo}", f"data.path={site.votes}", "data.groups=2", "data.group_size=2"]
    changes += ["policy.train=lora", "training.iterations=1", "evaluation.prompts=4", "evaluation.diversity_prompts=0"]
    run = train(load_config("quickstart", [*changes, f"run.dir={tmp_path / 'dpo'}"]))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("loss" in line for line in lines if line["kind"] == "train")
    assert (run / "checkpoints" / "step-1").is_dir()


def test_text_votes_keep_the_texts(visit, pictured, site):
    page = visit(tab="Blind vote on answers")
    before = len(site.votes.read_text().splitlines()) if site.votes.exists() else 0
    for _ in range(3):  # two answers may be the same
        message = vote(page, "tie")
        assert "prefers neither" in message
    pictured(page, "vote_answers")
    after = len(site.votes.read_text().splitlines()) if site.votes.exists() else 0
    assert after == before
    last = json.loads((site.votes.parent / "votes.undecided.jsonl").read_text().splitlines()[-1])
    assert all(isinstance(answer, str) for answer in last["metadata"]["vote"]["answers"]) and last["task"]


def test_votes_count_once(visit, site):
    page = visit(tab="Blind vote")
    vote(page, "both_bad")
    count = len((site.votes.parent / "votes.undecided.jsonl").read_text().splitlines())
    page.evaluate("document.querySelectorAll('#mm-both_bad').forEach((b) => { b.disabled = false; b.click(); })")
    page.wait_for_timeout(500)
    assert len((site.votes.parent / "votes.undecided.jsonl").read_text().splitlines()) == count
