"""Searching an index of pictures with parts of another picture, at several scales; and the tool that does it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import CallRejected, ToolContext
from mmrl.environments.environment_registry import load_tool
from mmrl.environments.picture_index import PictureIndex, scaled_box
from mmrl.environments.tool import BadArguments
from mmrl.errors import ConfigError
from mmrl_shapeworld.scenes import BACKGROUND, COLOURS
from mmrl_shapeworld.shipped_models import CLIP
from tests.environments.worlds import READER

RED, BLUE, PURPLE = (255, 0, 0), (0, 0, 255), (128, 0, 128)


def mean_colours(pictures):
    means = np.stack([np.asarray(each, np.float32).mean((0, 1)) for each in pictures])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def plain(colour, size=(8, 8)):
    return Image.new("RGB", size, colour)


def halves():
    """Return a scene 20 wide and 10 high: red on the left, blue on the right."""
    scene = plain(RED, (20, 10))
    scene.paste(plain(BLUE, (10, 10)), (10, 0))
    return scene


def test_a_part_finds_what_it_shows_and_the_whole_finds_the_mixture():
    index = PictureIndex(mean_colours, [plain(RED), plain(BLUE), plain(PURPLE)])
    left, right, whole = (
        index.search(halves(), [box], (1.0,), 3)[0] for box in ((0, 0, 8, 8), (12, 0, 20, 8), (0, 0, 20, 10))
    )
    assert (left[0][0], right[0][0], whole[0][0]) == (0, 1, 2)
    assert left[0][1] == pytest.approx(1.0)
    # by hand: red and blue are at right angles, purple is halfway between them
    assert dict(left)[1] == pytest.approx(0.0) and dict(left)[2] == pytest.approx(2**-0.5, abs=1e-6)


def test_several_boxes_are_searched_at_once():
    index = PictureIndex(mean_colours, [plain(RED), plain(BLUE)], batch=1)
    boxes = [(0, 0, 8, 8), (12, 0, 20, 8)]
    both = index.search(halves(), boxes, (0.5, 1.0), 1)
    assert [found[0][0] for found in both] == [0, 1]
    assert both == [index.search(halves(), [box], (0.5, 1.0), 1)[0] for box in boxes]
    assert index.search(halves(), [], (1.0,), 1) == []


def test_a_scale_that_fits_makes_up_for_a_loose_box():
    index = PictureIndex(mean_colours, [plain(RED), plain(PURPLE)])
    loose = (1, 0, 15, 10)  # 9 of its 14 columns are red; at half its width 6 of 7
    assert index.search(halves(), [loose], (1.0,), 1)[0][0][0] == 1
    assert index.search(halves(), [loose], (1.0, 0.4), 1)[0][0][0] == 0


@given(
    scales=st.lists(st.floats(0.2, 3), min_size=1, max_size=4),
    x=st.integers(0, 18), y=st.integers(0, 8), width=st.integers(1, 20), height=st.integers(1, 10),
)  # fmt: skip
def test_the_score_is_the_best_over_the_scales(scales, x, y, width, height):
    index, box = PictureIndex(mean_colours, [plain(RED), plain(BLUE)]), (x, y, min(x + width, 20), min(y + height, 10))
    found = dict(index.search(halves(), [box], scales, 2)[0])
    alone = [dict(index.search(halves(), [box], [scale], 2)[0]) for scale in scales]
    for number in (0, 1):
        assert found[number] == pytest.approx(max(each[number] for each in alone), abs=1e-6)


@given(
    x=st.integers(0, 99), y=st.integers(0, 49), width=st.integers(1, 100), height=st.integers(1, 50),
    scale=st.floats(0.01, 100),
)  # fmt: skip
def test_a_scaled_box_lies_inside_and_has_a_pixel(x, y, width, height, scale):
    left, top, right, bottom = scaled_box((x, y, min(x + width, 100), min(y + height, 50)), scale, (100, 50))
    assert 0 <= left < right <= 100 and 0 <= top < bottom <= 50


def test_equal_pictures_keep_their_order_and_an_index_is_never_empty():
    index = PictureIndex(mean_colours, [plain(BLUE), plain(RED), plain(RED)])
    assert [number for number, _ in index.search(halves(), [(0, 0, 8, 8)], (1.0,), 3)[0]] == [1, 2, 0]
    with pytest.raises(ValueError, match="at least one picture"):
        PictureIndex(mean_colours, [])
    with pytest.raises(ValueError, match="at least one scale"):
        index.search(halves(), [(0, 0, 8, 8)], (), 3)


# The tool


def thing(colour, size=32):
    """Return a picture of a large square."""
    picture = Image.new("RGB", (size, size), BACKGROUND)
    ImageDraw.Draw(picture).rectangle((8, 8, 23, 23), fill=COLOURS[colour])
    return picture


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with an index of two things, and a scene of both, the blue one on the right."""
    place = tmp_path_factory.mktemp("index")
    for colour in ("red", "blue"):
        thing(colour).save(place / f"{colour}.png")
    rows = [{"id": c, "text": f"It is {c}.", "image": f"{c}.png"} for c in ("red", "blue")]
    (place / "index.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    scene = Image.new("RGB", (64, 32), BACKGROUND)
    scene.paste(thing("red"), (0, 0))
    scene.paste(thing("blue"), (32, 0))
    scene.save(place / "scene.png")
    return place


@pytest.fixture(scope="module")
def tool(folder):
    return load_tool("search_picture", index=str(folder / "index.jsonl"), root=str(folder), model=str(CLIP), top=1)


def context(folder, reader: MediaReader = READER):
    return ToolContext(Sample("scene", prompt="What is it?", images=(str(folder / "scene.png"),)), reader)


def test_the_tool_tells_what_is_in_each_box(folder, tool):
    found = tool.call(context(folder), {"boxes": [[500, 0, 1000, 1000], [0, 0, 500, 1000]]})
    assert found.text == "box 0:\n[blue] It is blue.\nbox 1:\n[red] It is red."
    assert found.found == ("blue", "red") and found.images == ()


def test_without_a_box_the_whole_picture_is_searched(folder, tool):
    found = tool.call(context(folder), {})
    assert found.text.startswith("[") and len(found.found) == 1
    assert "norm" not in tool.description and "0 to 1000" in tool.description


def test_calls_that_cannot_be_are_rejected(folder, tool):
    with pytest.raises(CallRejected, match="outside"):
        tool.call(context(folder), {"boxes": [[0, 0, 2000, 2000]]})
    with pytest.raises(CallRejected, match="no picture 1"):
        tool.call(context(folder), {"image": 1})
    with pytest.raises(BadArguments, match="boxes"):
        tool.call(context(folder), {"boxes": [[0, 0, 1, 1]] * 9})


@pytest.mark.parametrize("settings", [{"top": 0}, {"scales": []}, {"scales": [0.0]}, {"space": "inches"}])
def test_wrong_settings_are_named(folder, settings):
    with pytest.raises(ConfigError, match="search_picture"):
        load_tool("search_picture", index=str(folder / "index.jsonl"), root=str(folder), model=str(CLIP), **settings)
