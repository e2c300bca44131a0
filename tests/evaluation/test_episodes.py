"""Episodes for people to look at: what actions point at, what is kept, and pages that nothing can break out of."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.data.media.budget import ImageBudget, MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.media.video import VideoFrames
from mmrl.data.sample import RewardChoice, Sample
from mmrl.environments import Observation, ToolEnvironment, load_tool
from mmrl.errors import EvaluationError
from mmrl.evaluation import Evaluation, evaluate, write_report
from mmrl.evaluation.episodes.action_marks import EDGE, INK, LEAST_SIDE, ActionMark, marked_picture, marks_in
from mmrl.evaluation.episodes.episode_files import load_episodes, save_episodes
from mmrl.evaluation.episodes.episode_view import (
    MOST_PICTURES,
    MOST_SIDE,
    MOST_TEXT,
    MOST_TURNS,
    episode_view,
    kept_rows,
    marked_pictures,
)
from mmrl.evaluation.evaluate import EPISODES
from mmrl.evaluation.results import forget_evaluations_after
from mmrl.rollout import EndOfEpisode, EpisodeRecord, Rollout, TurnReward
from tests.evaluation.evaluated_runs import png, routed, skills, write_run

READER = MediaReader(MediaBudget())
SIZES = [(100, 50)]
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=y>\x1b[2J\u202e{"bbox_2d": [1, 1, 20, 20]}'


NEXT = Observation("Next.")


def record(texts=("12, 34", "done"), observations=(NEXT,), **settings) -> EpisodeRecord:
    known: dict[str, Any] = {
        "outcome": {"success": True, "void": None, "score": 0.5, "list": [1, 2]},
        "events": (TurnReward(0, "progress", 1.0), TurnReward(0, "progress", 0.5), TurnReward(1, "late", float("nan"))),
        "info": ({"hit": 1.0}, {}),
        "end": EndOfEpisode.OVER,
        "space": "pixel",
    }
    return EpisodeRecord(texts=tuple(texts), observations=tuple(observations), **known | settings)


SAMPLE = Sample("s", prompt="Click.", images=(png("red", (56, 28)),), source="one")


def test_forced_turns_come_first_and_are_named():
    before = (("1, 2", Observation("After one.", (Image.new("RGB", (20, 10), "blue"),))),)
    turns = episode_view(SAMPLE, record(forced=before), READER).turns
    assert [turn.action for turn in turns] == ["1, 2", "12, 34", "done"]
    assert [turn.observed for turn in turns] == ["Click.", "After one.", "Next."]
    assert turns[0].info == {"forced": 1.0} and turns[0].rewards == {}
    assert turns[1].info == {"hit": 1.0} and turns[1].rewards == {"progress": 1.5} and len(turns[1].pictures) == 1


@pytest.mark.parametrize(
    ("action", "space", "corners"),
    [
        ("25, 10", "pixel", [(0.25, 0.2)]),
        ("click(250, 200)", "norm_1000", [(0.25, 0.2)]),
        ("<think>at 3, 4?</think><answer>(50, 25)</answer>", "pixel", [(0.5, 0.5)]),
        ('{"action": "click", "point": [25, 10]}', "pixel", [(0.25, 0.2)]),
        ('{"x": 0.25, "y": 0.2}', "norm_1", [(0.25, 0.2)]),
        ('[{"bbox_2d": [10, 5, 50, 25], "label": "2 cats"}]', "pixel", [(0.1, 0.1, 0.5, 0.5)]),
        ("(10,5),(50,25)", "pixel", [(0.1, 0.1, 0.5, 0.5)]),
        (
            '<tool_call>{"name": "draw", "arguments": {"boxes": [[0, 0, 500, 500]], "points": [[1000, 0]]}}',
            "norm_1000",
            [(0, 0, 0.5, 0.5), (1, 0)],
        ),
        ("25, 10, 50, 25", "pixel", [(0.25, 0.2), (0.5, 0.5)]),
        ("25, 10, 50", "pixel", []),
        ("25, 90", "pixel", []),  # below the picture
        ('[{"bbox_2d": [50, 5, 10, 25]}]', "pixel", []),  # swapped corners
        ('{"point": [true, 3]}', "pixel", []),
        ("it is blue", "pixel", []),
        ("", "pixel", []),
    ],
)
def test_points_and_boxes_are_read_in_their_space(action, space, corners):
    found = marks_in(action, space, SIZES)
    assert [mark.corners for mark in found] == [pytest.approx(each) for each in corners]


def test_a_box_names_its_picture():
    call = '{"name": "crop", "arguments": {"box": [0, 0, 56, 28], "image": %s}}'
    sizes = [(56, 28), (10, 10)]
    assert marks_in(call % 0, "pixel", sizes) == [ActionMark((0, 0, 1, 1), 0)]
    assert marks_in(call % 1, "pixel", sizes) == []  # larger than that picture
    assert marks_in(call % 7, "norm_1000", sizes)[0].image is None
    assert marks_in("1, 1", "pixel", []) == []


def test_no_text_breaks_or_holds_up_the_search_for_marks():
    rng = np.random.default_rng(0)
    texts = [
        "[" * 19_000,
        '{"a":' * 3_000,
        "9" * 19_000,
        '{"point": [1e999, 1]}',
        '{"point": [1%s, 1]}' % ("0" * 400),
        '{"box": [NaN, 1, 2, 3]}',
        "[1, 2" * 3_000,
    ]
    texts += ["".join(rng.choice(list('[]{}":,0129abx '), 200)) for _ in range(300)]
    start = time.process_time()
    for text in texts:
        assert len(marks_in(text, "pixel", SIZES)) <= 32
    assert time.process_time() - start < 5


def test_marks_are_drawn_where_they_are():
    white = Image.new("RGB", (56, 28), "white")
    drawn = np.asarray(marked_picture(white, [ActionMark((0.25, 0.5, 0.75, 1.0))]))
    factor = LEAST_SIDE // 56
    assert drawn.shape == (28 * factor, 56 * factor, 3)
    left, right, top = (round(side * factor) for side in (14, 42, 14))
    inked = np.argwhere((drawn == INK).all(-1))
    assert inked[:, 1].min() == left and inked[:, 1].max() == right and inked[:, 0].min() == top
    assert (drawn[top + 20, (left + right) // 2] == 255).all()  # a frame, not a filled box
    ring = np.asarray(marked_picture(white, [ActionMark((0.5, 0.5))]))
    inked = np.argwhere((ring == INK).all(-1))
    assert inked.mean(0) == pytest.approx([14 * factor, 28 * factor], abs=1)
    assert (ring[14 * factor, 28 * factor] == 255).all()  # what is clicked at stays visible
    large = Image.new("RGB", (900, 300))
    assert marked_picture(large, []).size == (900, 300)
    assert (np.asarray(marked_picture(Image.new("RGB", (500, 500)), [ActionMark((0.5, 0.5))])) == EDGE).all(-1).any()


def test_an_episode_is_kept_as_the_policy_saw_it():
    clip = VideoFrames(np.zeros((9, 8, 8, 3), np.uint8), np.arange(9.0), tuple(range(9)), 1.0, 1.0, 9)
    second = Observation("Next.", (Image.new("RGB", (900, 600), "blue"),), (clip,))
    small = MediaReader(MediaBudget(ImageBudget(0, 400 * 400)))
    episode = episode_view(SAMPLE, record(observations=[second]), small)
    first, last = episode.turns
    assert (first.observed, first.action, first.space) == ("Click.", "12, 34", "pixel")
    assert first.rewards == {"progress": 1.5} and last.rewards == {} and first.info == {"hit": 1.0}
    assert first.pictures[0].size == (56, 28)
    picture, strip = last.pictures
    assert picture.size[0] * picture.size[1] <= 400 * 400 and strip.clip_frames == 9
    assert episode.outcome == {"success": True, "void": None, "score": 0.5, "list": "[1, 2]"}
    captions = [[caption for caption, _ in turn] for turn in marked_pictures(episode)]
    assert captions == [["picture 0"], ["picture 1", "clip of 9 frames"]]


def test_a_mark_on_an_earlier_picture_shows_it_again():
    call = '{"name": "crop", "arguments": {"box": [0, 0, 500, 500], "image": 0}}'
    turns = record([call, call, "red"], [Observation(images=(Image.new("RGB", (20, 20)),)), Observation("No.")],
                   space="norm_1000")  # fmt: skip
    views = marked_pictures(episode_view(SAMPLE, turns, READER))
    assert [[caption for caption, _ in turn] for turn in views] == [
        ["picture 0"],
        ["picture 0, again", "picture 1"],
        [],
    ]


def test_the_answer_to_a_task_of_boxes_is_in_the_space_of_the_task():
    grounded = dataclasses.replace(SAMPLE, rewards=(RewardChoice("box_iou", args={"space": "norm_1"}),))
    episode = episode_view(grounded, record(space="norm_1000"), READER)
    assert [turn.space for turn in episode.turns] == ["norm_1000", "norm_1"]
    cut = episode_view(grounded, record(space="norm_1000", end=EndOfEpisode.CUT_OFF), READER)
    assert [turn.space for turn in cut.turns] == ["norm_1000", "norm_1000"]
    assert episode_view(SAMPLE, record(space=None), READER).turns[0].space is None
    assert episode_view(SAMPLE, record(space="miles"), READER).turns[0].space is None


def test_tools_name_the_space_that_they_share():
    crop, draw = load_tool("crop"), load_tool("draw", space="pixel")
    assert ToolEnvironment([crop, load_tool("calculator")]).space == "norm_1000"
    assert ToolEnvironment([crop, draw]).space is None and ToolEnvironment([load_tool("calculator")]).space is None


def test_what_is_kept_of_an_episode_has_limits(tmp_path):
    wide = Observation("x" * 50_000, tuple(Image.new("RGB", (2000, 10)) for _ in range(9)))
    many = record(["y" * 50_000] * 40, [wide] * 39, outcome={str(n): "z" * 9_000 for n in range(99)}, info=())
    episode = episode_view(SAMPLE, many, READER)
    assert len(episode.turns) == MOST_TURNS and episode.left_out == 40 - MOST_TURNS
    assert len(episode.turns[1].pictures) == MOST_PICTURES
    assert max(episode.turns[1].pictures[0].image.size) <= MOST_SIDE < episode.turns[1].pictures[0].size[0]
    assert len(episode.turns[1].observed) <= MOST_TEXT >= len(episode.turns[1].action)
    save_episodes(tmp_path, 3, {(0, 0): episode})
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 2**21


def test_kept_episodes_are_loaded(tmp_path):
    episode = episode_view(SAMPLE, record([HOSTILE, "1, 1"]), READER)
    save_episodes(tmp_path, 3, {(7, 1): episode, (12, 0): episode})
    found = load_episodes(tmp_path, 3)
    assert list(found) == [(7, 1), (12, 0)] and load_episodes(tmp_path, 4) == {}
    assert [dataclasses.replace(turn, pictures=()) for turn in found[7, 1].turns] == [
        dataclasses.replace(turn, pictures=()) for turn in episode.turns
    ]
    assert found[7, 1].outcome == episode.outcome
    np.testing.assert_array_equal(
        np.asarray(found[7, 1].turns[0].pictures[0].image), np.asarray(episode.turns[0].pictures[0].image)
    )
    save_episodes(tmp_path, 3, {})
    assert load_episodes(tmp_path, 3) == {}


def test_episodes_of_others_reach_no_file_outside_and_damaged_ones_are_named(tmp_path):
    save_episodes(tmp_path, 3, {(0, 0): episode_view(SAMPLE, record(), READER)})
    here = tmp_path / "episodes" / "step-3"
    path, picture = here / "0000-0.json", here / "0000-0-0.png"
    whole = json.loads(path.read_text())
    secret = tmp_path / "secret.png"
    shutil.copy(picture, secret)
    picture.unlink()
    picture.symlink_to(secret)
    with pytest.raises(EvaluationError, match=r"0000-0\.json.*is a link"):
        load_episodes(tmp_path, 3)
    picture.unlink()
    Image.new("RGB", (MOST_SIDE + 1, 1)).save(picture)
    with pytest.raises(EvaluationError, match="pixels"):
        load_episodes(tmp_path, 3)
    shutil.copy(secret, picture)
    for damage in ("", "[]", "{}", json.dumps(whole | {"turns": [{}]}), json.dumps(whole | {"left_out": "x"})):
        path.write_text(damage)
        with pytest.raises(EvaluationError, match=r"0000-0\.json"):
            load_episodes(tmp_path, 3)
    path.unlink()
    path.symlink_to(secret)
    assert load_episodes(tmp_path, 3) == {}


@dataclasses.dataclass
class PlayPolicy:
    """Plays without a model: two turns a row, of which the first is `first`."""

    first: str
    capabilities = frozenset()
    version = 0

    def rollout(self, requests, seed):
        samples = [request.sample for request in requests for _ in range(request.n)]
        groups = torch.tensor([request.group for request in requests for _ in range(request.n)])
        empty = torch.zeros(len(samples), 0)
        episodes = [record([self.first, str(sample.answer)]) for sample in samples]
        media = [each.texts[-1] for each in episodes]
        return Rollout(samples, groups, empty, empty.bool(), empty.long(), media, 0, episodes=episodes)


def world(count: int, sources: int) -> list[Sample]:
    one = RewardChoice("exact")
    return [
        Sample(f"w{n}", prompt=f"task {n}", images=(png("red", (56, 28)),), source=f"s{n % sources}", answer=n,
               rewards=(one,))
        for n in range(count)
    ]  # fmt: skip


def played(folder: Path, step: int, first: str, samples: list[Sample], **settings) -> Evaluation:
    chosen: dict[str, Any] = {"draws": 2, "batch": 5, "seed": 1, "pictures": 6} | settings
    found = evaluate(PlayPolicy(first), samples, routed(samples), step=step, reader=READER, **chosen)
    found.save(folder, pictures=6)
    return found


def test_evaluations_keep_some_episodes_of_each_source(tmp_path):
    found = played(tmp_path, 5, "12, 34", world(30, 3))
    assert sorted(found.episodes) == [0, 2, 4, 6, 8, 10]  # the first draws of two tasks of each source
    assert sorted(Evaluation.load(tmp_path, 5).episodes) == sorted(found.episodes)
    assert Evaluation.load(tmp_path, 5, images=False).episodes == {}
    assert played(tmp_path, 6, "12, 34", world(4, 2), pictures=0).episodes == {}
    assert len(kept_rows([f"s{n}" for n in range(50)], 1, EPISODES)) == EPISODES


def test_the_report_shows_turns_before_and_after_and_escapes_them(tmp_path):
    run = write_run(tmp_path / "run", skills(0.2, 0.2, 0.2), skills(0.9, 0.9, 0.9))
    assert "Episodes" not in write_report(run).read_text(encoding="utf-8")
    samples = world(4, 2)
    played(run, 0, HOSTILE, samples)
    played(run, 4, "12, 34", samples)
    page = write_report(run).read_text(encoding="utf-8")
    part = page[page.index("<h2>Episodes</h2>") : page.index("<h2>Answers")]
    assert part.count('class="turn-head">step 0') == part.count('class="turn-head">step 4') == 4
    assert part.count('<p class="turn-number">turn 2</p>') == 8 and part.count("progress 1.5") == 8
    assert "<script" not in page and "onerror=y>" not in page and "\x1b" not in page and "\u202e" not in page
    assert "&lt;script&gt;alert(1)" in part and 'src="data:image/png;base64,' in part
    boxed, clicked = (part.index(text) for text in ("step 0, turn 1: picture 0", "step 4, turn 1: picture 0"))
    assert 0 < boxed < clicked and "success</dt><dd>yes" in part
    forget_evaluations_after(run, 0)  # as a run that resumes from there
    assert load_episodes(run, 0) and load_episodes(run, 4) == {}
