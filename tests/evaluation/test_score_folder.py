"""Pictures that are there already: which prompt is theirs, what is written about them, and what the page shows."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import os
import re

import pytest
from PIL import Image

from mmrl.data import DataError
from mmrl.data.sample import Sample
from mmrl.evaluation import score_folder
from mmrl.evaluation.report.scoring_page import MOST_PICTURES, MOST_UNSCORED, ranked, write_page
from mmrl.evaluation.score_folder import Pairing, ScoreRow, pair_up
from mmrl.rewards import GroupReward, InvalidAnswer, Reward, RewardSuite
from mmrl.rewards.core.image_input import MAX_PIXELS
from mmrl.rewards.core.reward_errors import ScoringFailed


class FaultyRedness(Reward):
    """Mean red."""

    name, needs, range = "redness", ("image",), (0.0, 1.0)

    def score_one(self, item):
        red, green, _ = item.image.getpixel((0, 0))
        if green == 255:
            raise InvalidAnswer("too green")
        if green == 128:
            raise ScoringFailed("half green", "green")
        return red / 255


class GroupSize(GroupReward):
    """The number of images in a group."""

    name, needs, range = "group_size", ("image",), (0.0, 1000.0)

    def score_group(self, items):
        assert len({item.prompt for item in items}) == 1
        return [float(len(items))] * len(items)


def paint(path, red=0, green=0, size=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (red, green, 0)).save(path)
    return path


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def names(pairings):
    return [(pairing.picture.name, pairing.sample.prompt, pairing.group) for pairing in pairings]


# pairing


def test_images_match_samples_by_id(tmp_path):
    paint(tmp_path / "i" / "a.png")
    paint(tmp_path / "i" / "b.JPG")
    paint(tmp_path / "i" / "c" / "10.png")
    paint(tmp_path / "i" / "c" / "9.webp")
    paint(tmp_path / "i" / "sub" / "d.jpeg")
    paint(tmp_path / "i" / "stranger.png")
    (tmp_path / "i" / "notes.txt").write_text("x")
    file = jsonl(tmp_path / "p.jsonl", *({"id": i, "prompt": f"p {i}", "answer": 3} for i in ("c", "b", "sub/d", "a")))
    pairings, unused = pair_up(tmp_path / "i", file)
    assert names(pairings) == [
        ("9.webp", "p c", 0), ("10.png", "p c", 0), ("b.JPG", "p b", 1), ("d.jpeg", "p sub/d", 2), ("a.png", "p a", 3),
    ]  # fmt: skip
    assert unused == 1 and pairings[0].sample.answer == 3


def test_images_match_prompt_lines_in_name_order(tmp_path):
    for number in (1, 2, 10, 9):
        paint(tmp_path / "i" / f"p{number}.png")
    (tmp_path / "p.txt").write_text("one\n two \nnine\none\n\n\n")
    pairings, unused = pair_up(tmp_path / "i", tmp_path / "p.txt")
    assert names(pairings) == [("p1.png", "one", 0), ("p2.png", "two", 1), ("p9.png", "nine", 2), ("p10.png", "one", 0)]
    assert unused == 0


def test_separators_in_a_prompt_do_not_end_its_line(tmp_path):
    paint(tmp_path / "i" / "1.png")
    (tmp_path / "p.txt").write_text("red\u2028circle\n", encoding="utf-8")
    assert names(pair_up(tmp_path / "i", tmp_path / "p.txt")[0]) == [("1.png", "red\u2028circle", 0)]


def test_exponents_in_names_are_not_numbers(tmp_path):
    for name in ("²5", "10", "9"):
        paint(tmp_path / f"{name}.png")
    (tmp_path / "p.txt").write_text("nine\nten\nsquare\n")
    assert [name for name, _, _ in names(pair_up(tmp_path, tmp_path / "p.txt")[0])] == ["9.png", "10.png", "²5.png"]


@pytest.mark.parametrize("id", ["x" * 300, "x/" * 3000 + "x", "loop/x"])
def test_ids_invalid_as_file_names_have_no_image(id, tmp_path):
    paint(tmp_path / "i" / "a.png")
    (tmp_path / "i" / "loop").symlink_to("loop")
    file = jsonl(tmp_path / "p.jsonl", {"id": id, "prompt": "x"})
    with pytest.raises(DataError, match="no picture for 1 of 1"):
        pair_up(tmp_path / "i", file)


def test_unequal_counts_raise_with_both_numbers(tmp_path):
    paint(tmp_path / "i" / "a.png")
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=r"2 prompts and .* 1 pictures"):
        pair_up(tmp_path / "i", tmp_path / "p.txt")
    (tmp_path / "p.txt").write_text("one\n\ntwo\n")
    with pytest.raises(DataError, match=r"p\.txt:2: is empty"):
        pair_up(tmp_path / "i", tmp_path / "p.txt")
    file = jsonl(tmp_path / "p.jsonl", {"id": "a", "prompt": "x"}, *({"id": f"b{i}", "prompt": "x"} for i in range(9)))
    with pytest.raises(DataError, match=r"no picture for 9 of 10 samples: b0, b1, b2, b3, b4 and 4 more.*b0\.png"):
        pair_up(tmp_path / "i", file)


def test_ambiguous_images_raise(tmp_path):
    paint(tmp_path / "i" / "a.png")
    paint(tmp_path / "i" / "a.jpg")
    file = jsonl(tmp_path / "p.jsonl", {"id": "a", "prompt": "x"})
    with pytest.raises(DataError, match=r"a\.png, a\.jpg could all be"):
        pair_up(tmp_path / "i", file)
    (tmp_path / "i" / "a.jpg").unlink()
    paint(tmp_path / "i" / "a" / "0.png")
    with pytest.raises(DataError, match=r"a\.png, 0\.png could all be"):
        pair_up(tmp_path / "i", file)


@pytest.mark.parametrize("id", ["../secret", "x/../../secret", ".", "", "..", "a\0b", "{tmp}/secret", "."])
def test_ids_cannot_reach_outside_the_folder(id, tmp_path):
    paint(tmp_path / "secret.png")
    paint(tmp_path / "i.png")
    paint(tmp_path / "i" / "x" / "0.png")
    file = jsonl(tmp_path / "p.jsonl", {"id": id.replace("{tmp}", str(tmp_path)), "prompt": "x"})
    with pytest.raises(DataError, match="no picture for 1 of 1"):
        pair_up(tmp_path / "i", file)


@pytest.mark.parametrize(
    ("file", "text"), [("p.csv", "must be a .jsonl"), ("none.txt", "cannot be read"), ("none.jsonl", "cannot be read")]
)
def test_files_that_are_no_image_raise(file, text, tmp_path):
    (tmp_path / "p.csv").write_text("x")
    with pytest.raises(DataError, match=text):
        pair_up(tmp_path, tmp_path / file)
    with pytest.raises(DataError, match="no such folder"):
        pair_up(tmp_path / "none", tmp_path / file)
    with pytest.raises(DataError, match="is no folder"):
        pair_up(tmp_path / "p.csv", tmp_path / file)


# scoring


def scored(pairings, *rewards):
    suite = RewardSuite([(reward, 1.0) for reward in rewards])
    rows = [row for part in score_folder.score(pairings, suite) for row in part]
    suite.close()
    return rows


def test_every_image_has_a_row_and_failures_are_not_zero(tmp_path):
    paint(tmp_path / "a.png", red=255)
    paint(tmp_path / "b.png", green=255)
    paint(tmp_path / "c.png", green=128)
    (tmp_path / "d.png").write_bytes(b"no picture")
    (tmp_path / "p.txt").write_text("a\nb\nc\nd\n")
    rows = scored(pair_up(tmp_path, tmp_path / "p.txt")[0], FaultyRedness(), GroupSize())
    assert [row.values["redness"] for row in rows[:2]] == [1, 0]
    assert math.isnan(rows[2].values["redness"]) and math.isnan(rows[3].values["redness"])
    assert [row.status["redness"] for row in rows] == ["ok", "invalid", "error", "error"]
    assert score_folder.kinds(rows, "redness") == {"green": 1, "unreadable": 1}
    assert score_folder.counts(rows, "redness") == {"ok": 1, "invalid": 1, "error": 2}
    assert score_folder.known(rows, "redness") == [1, 0] and score_folder.score_names(rows) == ["redness", "group_size"]
    assert "d.png" in rows[3].detail["redness"] and rows[2].values["group_size"] == 1


def test_groups_are_scored_whole_at_any_size_and_order(tmp_path):
    picture = paint(tmp_path / "a.png")
    few = [Pairing(picture.with_name("a.png"), Sample(id="0", prompt=f"{i % 3}"), i % 3) for i in range(9)]
    for i, pairing in enumerate(few):  # each its own file: rows are told apart by it
        few[i] = Pairing(paint(tmp_path / f"{i}.png"), pairing.sample, pairing.group)
    monkey = score_folder.AT_ONCE
    try:
        score_folder.AT_ONCE = 2
        rows = scored(few, GroupSize())
    finally:
        score_folder.AT_ONCE = monkey
    assert [row.values["group_size"] for row in rows] == [3.0] * 9
    assert len({row.pairing.picture for row in rows}) == 9


class Darkness(Reward):
    """The distances of an image from white and from red."""

    name, needs, range, direction = "darkness", ("image",), (0.0, 1.0), "lower"

    def score_one(self, item):
        red, green, _ = item.image.getpixel((0, 0))
        return {"darkness": 1 - green / 255, "paleness": 1 - red / 255}


def test_transparent_pixels_reach_no_reward(tmp_path):
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "a.png")
    pairing = Pairing(tmp_path / "a.png", Sample(id="a", prompt="x"), 0)
    assert score_folder.open_picture(pairing.picture).getcolors() == [(16, (255, 255, 255))]
    (row,) = scored([pairing], Darkness())
    assert row.values["darkness"] == 0, "white on the page, and white to the reward"
    write_page([row], [], {}, tmp_path / "index.html")
    heldout = re.search(r"data:image/png;base64,([^\"]+)", (tmp_path / "index.html").read_text(encoding="utf-8"))[1]
    assert Image.open(io.BytesIO(base64.b64decode(heldout))).convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_oversized_images_are_not_decoded(tmp_path):
    size = (MAX_PIXELS // 4096 + 1, 4096)
    Image.new("1", size).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png: the image has 8193 x 4096 pixels"):
        score_folder.open_picture(tmp_path / "a.png")
    (row,) = scored([Pairing(tmp_path / "a.png", Sample(id="a", prompt="x"), 0)], FaultyRedness())
    assert row.status["redness"] == "error" and row.failures["redness"] == "unreadable"


def test_decoded_pixels_stay_below_the_memory_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(score_folder, "PIXELS_AT_ONCE", 100)
    sizes = (6, 7, 9, 20, 4, 4, 4)  # 36, 49, 81, 400, 16, 16, 16 pixels
    pairings = [
        Pairing(paint(tmp_path / f"{i}.png", size=size), Sample(id=str(i), prompt="x"), 0)
        for i, size in enumerate(sizes)
    ]

    def parts(reward):
        suite = RewardSuite([(reward, 1.0)])
        found = [len(rows) for rows in score_folder.score(pairings, suite)]
        suite.close()
        return found

    assert parts(FaultyRedness()) == [2, 1, 1, 3]
    assert parts(GroupSize()) == [7], "pictures that are compared stay together"


def test_every_score_has_a_direction(tmp_path):
    pairings = [Pairing(paint(tmp_path / f"{i}.png", red=i), Sample(id=str(i), prompt="x"), i) for i in (0, 200)]
    rows = scored(pairings, FaultyRedness(), Darkness())
    assert score_folder.lower_names(rows) == {"darkness", "paleness"}
    best, worst = ranked(rows, "paleness", "paleness" in score_folder.lower_names(rows))
    assert [row.pairing.sample.id for row in (*best, *worst)] == ["200", "0"]


def test_samples_sharing_an_image_have_separate_rows(tmp_path):
    paint(tmp_path / "a.png", red=255)
    file = jsonl(tmp_path / "p.jsonl", {"id": "a", "prompt": "one"}, {"id": "./a", "prompt": "two"})
    assert [row.pairing.sample.prompt for row in scored(pair_up(tmp_path, file)[0], FaultyRedness())] == ["one", "two"]


# files


def a_row(i, value, status="ok", prompt="p", **others):
    sample = Sample(id=f"s{i}", prompt=prompt)
    return ScoreRow(Pairing(others.pop("picture"), sample, i), {"redness": value}, {"redness": status}, **others)


def test_tables_hold_every_row(tmp_path):
    path = paint(tmp_path / "a.png")
    rows = [
        a_row(0, 0.25, picture=path, prompt='=cmd|"x"!A1,\nnew'),
        a_row(1, math.nan, "error", picture=path, failures={"redness": "http_503"}, detail={"redness": "<down>"}),
    ]
    score_folder.write_table(rows, tmp_path)
    with score_folder.open_lines(tmp_path) as lines:
        score_folder.write_lines(rows[:1], lines)
        assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 1, "written before the rest is there"
        score_folder.write_lines(rows[1:], lines)
    with (tmp_path / "scores.csv").open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert first["redness"] == "0.25" and first["redness.status"] == "ok" and first["prompt"] == '\'=cmd|"x"!A1,\nnew'
    assert second["redness"] == "" and second["redness.failure"] == "http_503"
    one, two = map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())
    assert one["prompt"] == '=cmd|"x"!A1,\nnew' and one["scores"] == {"redness": 0.25}
    assert two["scores"] == {"redness": None} and two["failures"] == {"redness": "http_503"}


def test_names_and_prompts_outside_unicode_are_written(tmp_path):
    path = paint(tmp_path / os.fsdecode(b"\xff.png"), red=51)
    rows = [a_row(0, 0.2, picture=path, prompt="half \ud800")]
    score_folder.write_table(rows, tmp_path)
    with score_folder.open_lines(tmp_path) as lines:
        score_folder.write_lines(rows, lines)
    write_page(rows, [], {}, tmp_path / "index.html")
    (kept,) = map(json.loads, (tmp_path / "scores.jsonl").read_text(encoding="utf-8").splitlines())
    assert kept["picture"] == str(path) and kept["prompt"] == "half \ud800"
    assert "udcff.png" in (tmp_path / "scores.csv").read_text(encoding="utf-8")
    assert "udcff.png" in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("n", [0, 1, 2, 5, 2 * MOST_PICTURES, 100])
def test_no_image_is_both_best_and_worst(n, tmp_path):
    rows = [a_row(i, float(i * 7 % 101), picture=tmp_path) for i in range(n)]
    rows += [a_row(200, math.nan, "error", picture=tmp_path)]
    best, worst = ranked(rows, "redness", lower_is_better=False)
    values = sorted((i * 7 % 101 for i in range(n)), reverse=True)
    assert [row.values["redness"] for row in best] == values[: len(best)]
    assert [row.values["redness"] for row in worst] == values[::-1][: len(worst)]
    assert len(best) + len(worst) == min(n, 2 * MOST_PICTURES) and not {id(r) for r in best} & {id(r) for r in worst}
    assert [row.values["redness"] for row in ranked(rows, "redness", True)[0]] == values[::-1][: len(best)]


def test_page_displays_best_and_worst_and_escapes_texts(tmp_path):
    nasty = '<script>alert(1)</script><img src=x onerror="x">\'" & $'
    rows = [
        a_row(0, 0.9, picture=paint(tmp_path / "best.png", red=230, size=300), prompt=nasty),
        a_row(1, 0.0, "invalid", picture=paint(tmp_path / "worst.png"), prompt="x" * 5000),
        a_row(2, math.nan, "timeout", picture=tmp_path / "gone.png", failures={"redness": "timeout"},
              detail={"redness": nasty}),
    ]  # fmt: skip
    write_page(rows, [], {"Pictures in": nasty}, tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<script" not in page and 'onerror="x' not in page and page.count("data:image/png;base64,") == 2
    assert "http" not in page.replace("http-equiv", ""), "nothing is loaded from anywhere"
    assert "default-src 'none'" in page and "x" * 601 not in page
    assert page.index("best.png") < page.index("worst.png") < page.index("gone.png")
    assert "timeout 1" in page and '<span class="tag">invalid</span>' in page


def test_page_of_failures_alone_is_written(tmp_path):
    rows = [
        a_row(i, math.nan, "error", picture=tmp_path / f"{i}.png", failures={"redness": "connection"})
        for i in range(MOST_UNSCORED + 5)
    ]
    write_page(rows, ["redness"], {}, tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "And 5 more" in page and f"connection {MOST_UNSCORED + 5}" in page and "Best" not in page
