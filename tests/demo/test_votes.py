"""The files that votes are written to, and the votes that are rejected."""

import json
import random

import numpy as np
import pytest
from PIL import Image

from mmrl.build.datasets import load_samples
from mmrl.data.jsonl import read_samples
from mmrl.data.sample import Sample
from mmrl.data.sources import load_source
from mmrl.demo.error_handling import DemoError
from mmrl.demo.request_validation import as_uri
from mmrl.demo.votes import Ballot, RateLimiter, VoteFile, pick_pair, validate_verdict

RED, BLUE = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")


def ballot(left=RED, right=BLUE, sample=None):
    return Ballot(sample or Sample("s", prompt="a dog", metadata={"k": 1}), 5, ("base", "run@2"), (left, right))


@pytest.mark.parametrize(("verdict", "better"), [("left", "red"), ("right", "blue")])
def test_preferences_are_written_as_image_pairs(tmp_path, verdict, better):
    votes = VoteFile(tmp_path / "v" / "votes.jsonl")
    assert votes.add(ballot(), verdict, "visitor")
    (sample,) = load_samples(str(votes.path))
    chosen, rejected = Image.open(sample.chosen["image"]), Image.open(sample.rejected["image"])
    assert chosen.tobytes() == Image.new("RGB", (8, 8), better).tobytes() and rejected.tobytes() != chosen.tobytes()
    assert sample.rater == "visitor" and sample.metadata["k"] == 1
    assert sample.metadata["vote"] == {"seed": 5, "left": "base", "right": "run@2", "verdict": verdict}
    line = json.loads(votes.path.read_text())
    assert all(line[key]["image"].startswith("votes.media/") for key in ("chosen", "rejected"))


@pytest.mark.parametrize("verdict", ["tie", "both_bad"])
def test_ties_are_kept_apart_from_preference_pairs(tmp_path, verdict):
    votes = VoteFile(tmp_path / "votes.jsonl")
    assert not votes.add(ballot(), verdict, "visitor")
    (sample,) = read_samples(tmp_path / "votes.undecided.jsonl")
    assert sample.chosen is None and sample.rejected is None and sample.metadata["vote"]["verdict"] == verdict
    assert votes.count() == (0, 1) and not votes.path.exists()


def test_text_answers_keep_their_image(tmp_path):
    votes = VoteFile(tmp_path / "votes.jsonl")
    requested = Sample("s", prompt="what?", images=(as_uri(RED),), task="ocr", demonstration="three", answer="two")
    votes.add(ballot("one", "two", requested), "right", "visitor")
    (sample,) = load_samples(str(votes.path))
    assert (sample.chosen, sample.rejected, sample.task, sample.demonstration) == ("two", "one", "ocr", None)
    assert Image.open(sample.images[0]).getpixel((0, 0)) == (255, 0, 0)


def test_videos_of_a_prompt_are_found_from_the_folder_of_the_votes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    requested = Sample("s", prompt="what?", videos=("clips/a.mp4",), conditions={"video": "clips/b.mp4"})
    votes = VoteFile(tmp_path / "runs" / "votes.jsonl")
    votes.add(ballot("one", "two", requested), "right", "visitor")
    (sample,) = load_source(str(votes.path))
    for path, name in ((sample.videos[0], "a"), (sample.conditions["video"], "b")):
        assert (tmp_path / path).resolve() == tmp_path / "clips" / f"{name}.mp4"


def test_ballots_count_once(tmp_path):
    votes, once = VoteFile(tmp_path / "votes.jsonl"), ballot()
    votes.add(once, "left", "visitor")
    with pytest.raises(DemoError, match="voted on already"):
        votes.add(once, "right", "visitor")
    assert votes.count() == (1, 0)


def test_equal_answers_can_only_be_a_tie(tmp_path):
    votes = VoteFile(tmp_path / "votes.jsonl")
    same = ballot(RED, RED.copy())
    with pytest.raises(DemoError, match="same to the last pixel"):
        votes.add(same, "left", "visitor")
    votes.add(same, "tie", "visitor")
    assert votes.count() == (0, 1)


def test_written_images_hold_no_metadata(tmp_path):
    from PIL.PngImagePlugin import PngInfo

    metadata = PngInfo()
    metadata.add_text("checkpoint", "run@2")
    RED.save(tmp_path / "vote.png", pnginfo=metadata)
    VoteFile(tmp_path / "votes.jsonl").add(ballot(Image.open(tmp_path / "vote.png")), "left", "visitor")
    assert b"run@2" not in b"".join(path.read_bytes() for path in (tmp_path / "votes.media").iterdir())


def test_videos_are_rejected(tmp_path):
    with pytest.raises(DemoError, match="pairs of videos"):
        VoteFile(tmp_path / "votes.jsonl").add(ballot([RED, BLUE], [BLUE]), "left", "visitor")


def test_votes_are_rate_limited_per_visitor_and_in_total():
    now = [0.0]
    rate = RateLimiter(each=2, together=3, seconds=10, clock=lambda: now[0])
    rate.take("a"), rate.take("a")
    with pytest.raises(DemoError, match="Too many"):
        rate.take("a")
    rate.take("b")
    with pytest.raises(DemoError, match="Too many"):
        rate.take("c")  # new names do not help
    now[0] = 10.0
    rate.take("a")


def test_sides_are_shuffled():
    chance = random.Random(0)
    lefts = [pick_pair(["x", "y", "z"], chance) for _ in range(300)]
    assert all(a != b for a, b in lefts)
    assert all(abs(np.mean([pair[0] == name for pair in lefts]) - 1 / 3) < 0.1 for name in "xyz")
    with pytest.raises(DemoError, match="two checkpoints"):
        pick_pair(["x", "x"], chance)
    with pytest.raises(DemoError, match="left, right, tie"):
        validate_verdict("LEFT")
