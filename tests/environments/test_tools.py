"""The tools that ship, on real pictures and files."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from mmrl.data.sample import Sample
from mmrl.environments import BadArguments, CallRejected, Observation, ToolContext, load_tool
from mmrl.environments.source_pictures import SourcePictures
from mmrl.environments.tools.function_tool import FunctionTool
from mmrl.environments.tools.local_search import BM25, terms_of
from mmrl.errors import ConfigError
from tests.environments.worlds import READER, page, small_reader


def context_of(folder, pixels=None, **settings):
    return ToolContext(page(folder, **settings), READER if pixels is None else small_reader(pixels))


# Pictures


def test_pictures_are_decoded_once_for_all_rows_and_the_oldest_are_dropped(tmp_path):
    pages = [page(tmp_path, f"{number}.png", size=(100, 50)) for number in range(3)]
    sources = SourcePictures(limit_bytes=2 * 3 * 100 * 50)
    first, second = (ToolContext(pages[0], READER, sources) for _ in range(2))
    assert first.image(0) is second.image(0)
    kept = first.image(0)
    for other in pages[1:]:
        ToolContext(other, READER, sources).image(0)
    assert first.image(0) is not kept and np.array_equal(np.asarray(first.image(0)), np.asarray(kept))


def test_later_contexts_have_the_pictures_of_observations(tmp_path):
    context = context_of(tmp_path)
    after = context.with_images((Image.new("RGB", (3, 2)),))
    assert (context.count, after.count, after.image(1).size) == (1, 2, (3, 2))
    with pytest.raises(CallRejected, match="no picture 1"):
        context.image(1)


# Crop


def test_a_crop_is_cut_at_full_size_and_enlarged(tmp_path):
    context = context_of(tmp_path, pixels=2_000)  # the policy sees 63 x 31
    (part,) = load_tool("crop", side=100).call(context, {"box": [250, 250, 500, 500]}).images
    assert part.size == (100, 50)  # 100 x 50 pixels of the file, as they are
    expected = Image.open(context.sample.images[0]).convert("RGB").crop((100, 50, 200, 100))
    assert np.array_equal(np.asarray(part), np.asarray(expected))
    (large,) = load_tool("crop", side=400).call(context, {"box": [250, 250, 500, 500]}).images
    assert large.size == (400, 200)
    (as_it_is,) = load_tool("crop", side=400, enlarge=False).call(context, {"box": [250, 250, 500, 500]}).images
    assert as_it_is.size == (100, 50)


def test_pixels_are_those_of_the_policy_input(tmp_path):
    context = context_of(tmp_path, pixels=20_000)
    assert context.input_size(0) == (200, 100)
    (part,) = load_tool("crop", side=100, space="pixel").call(context, {"box": [50, 25, 100, 50]}).images
    assert part.getpixel((0, 0)) == (100, 50, 7)
    context.reader.resized_by_model = lambda size: (size[0] / 4, size[1] / 2)  # a processor with limits by itself
    assert context.input_size(0) == (100, 100)
    (part,) = load_tool("crop", side=100, space="pixel").call(context, {"box": [25, 25, 50, 50]}).images
    assert part.getpixel((0, 0)) == (100, 50, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"box": [0, 0, 2_000, 2_000]}, "outside"),
        ({"box": [500, 500, 100, 100]}, "swapped"),
        ({"box": [5, 5, 5, 5]}, "no area"),
        ({"box": [1e300, 0, 1e308, 1]}, "outside"),
        ({"box": [0, 0, 1, 1], "image": 1}, "numbered 0 to 0"),
        ({"box": [0, 0, 1, 1], "image": 10**300}, "no picture"),
    ],
)
def test_crops_that_cannot_be_are_rejected(tmp_path, arguments, message):
    with pytest.raises(CallRejected, match=message):
        load_tool("crop").call(context_of(tmp_path), arguments)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"box": [0, 0, 1]}, {"box": "0,0,1,1"}, {"box": [0, 0, 1, "x"]}, {"box": [0, 0, 1, float("nan")]},
     {"box": [0, 0, 1, 1], "image": -1}, {"box": [0, 0, 1, 1], "image": "/etc/passwd"},
     {"box": [0, 0, 1, 1], "path": "x"}],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_named(tmp_path, arguments):
    with pytest.raises(BadArguments, match=r"box|image|path"):
        load_tool("crop").call(context_of(tmp_path), arguments)


def test_a_sliver_of_a_crop_has_at_least_a_pixel(tmp_path):
    (part,) = load_tool("crop", side=64).call(context_of(tmp_path), {"box": [999.99, 0, 1000, 1000]}).images
    assert part.size == (1, 64)


# Draw


def test_marks_are_drawn_where_they_are_named(tmp_path):
    context = context_of(tmp_path)
    before = np.asarray(context.image(0)).copy()
    (drawn,) = load_tool("draw").call(context, {"boxes": [[250, 250, 500, 500]], "color": "red"}).images
    pixels = np.asarray(drawn)
    assert tuple(pixels[50, 150]) == (255, 0, 0) and tuple(pixels[99, 150]) == (255, 0, 0)
    changed = (pixels != before).any(-1)
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (50, 99, 100, 199)
    assert np.array_equal(np.asarray(context.image(0)), before)  # the picture itself stays
    (pointed,) = (
        load_tool("draw").call(context, {"points": [[500, 500]], "lines": [[0, 0, 1000, 0]], "color": "blue"}).images
    )
    assert pointed.getpixel((200, 100)) == (0, 0, 255) and pointed.getpixel((399, 0)) == (0, 0, 255)


@pytest.mark.parametrize("arguments", [{}, {"points": [[2_000, 0]]}, {"boxes": [[0, 0, 1, 1]], "image": 3}])
def test_drawings_that_cannot_be_are_rejected(tmp_path, arguments):
    with pytest.raises(CallRejected):
        load_tool("draw").call(context_of(tmp_path), arguments)


def test_too_many_marks_do_not_fit_the_schema(tmp_path):
    with pytest.raises(BadArguments, match="points"):
        load_tool("draw").call(context_of(tmp_path), {"points": [[0, 0]] * 51})


# Reading text


@pytest.mark.integration
def test_text_in_a_box_is_read(tmp_path):
    pytest.importorskip("rapidocr_onnxruntime")
    picture = Image.new("RGB", (640, 320), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(48)
    pen.text((40, 40), "HARBOUR", fill="black", font=font)
    pen.text((40, 220), "WINTER", fill="black", font=font)
    picture.save(tmp_path / "sign.png")
    context = ToolContext(Sample("sign", prompt="?", images=(str(tmp_path / "sign.png"),)), READER)
    tool = load_tool("read_text")
    assert tool.call(context, {}).text.split("\n") == ["HARBOUR", "WINTER"]
    assert tool.call(context, {"box": [0, 500, 1000, 1000]}).text == "WINTER"
    assert tool.call(context, {"box": [900, 0, 1000, 100]}).text == "(no text)"


# Search

TEXTS = ["The bridge was opened in 1932.", "A bridge of stone, a bridge of steel.", "Opened daily.", "Nothing here", ""]


def bm25(query, texts, k1=1.2, b=0.75):
    """Return the scores by the formula, text by text."""
    documents = [terms_of(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for words in documents:
        counts, total = Counter(words), 0.0
        for term in dict.fromkeys(terms_of(query)):
            containing = sum(term in other for other in documents)
            idf = math.log(1 + (len(texts) - containing + 0.5) / (containing + 0.5))
            total += idf * counts[term] * (k1 + 1) / (counts[term] + k1 * (1 - b + b * len(words) / mean))
        scores.append(total)
    return scores


@pytest.mark.parametrize("query", ["bridge", "opened BRIDGE", "a a a bridge opened in", "here", "zebra"])
def test_ranking_is_bm25(query):
    expected = bm25(query, TEXTS)
    found = BM25(TEXTS).search(query, 10)
    assert dict(found) == pytest.approx({n: score for n, score in enumerate(expected) if score})
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


def test_search_reads_a_file_below_its_root(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    lines = [json.dumps({"id": f"p{number}", "text": text}) for number, text in enumerate(TEXTS)]
    (tmp_path / "inside" / "index.jsonl").write_text("\n".join(lines))
    (tmp_path / "outside.jsonl").write_text('{"text": "secret"}')
    (tmp_path / "inside" / "link.jsonl").symlink_to(tmp_path / "outside.jsonl")
    monkeypatch.chdir(tmp_path / "inside")
    tool = load_tool("search", index="index.jsonl", top=1)
    context = ToolContext(Sample("text"), READER)
    assert tool.call(context, {"query": "steel bridge"}).text == f"[p1] {TEXTS[1]}"
    assert "no passage" in tool.call(context, {"query": "../outside.jsonl"}).text
    for escape in ("../outside.jsonl", "link.jsonl", str(tmp_path / "outside.jsonl")):
        with pytest.raises(ConfigError, match="outside"):
            load_tool("search", index=escape)
    for text in ("", "[1]", '{"text": 3}', "{"):
        (tmp_path / "inside" / "bad.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=r"bad\.jsonl"):
            load_tool("search", index="bad.jsonl")


def test_pages_are_found_by_their_text_and_opened_by_their_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(len(TEXTS)):
        Image.new("RGB", (400, 300), (number, 0, 0)).save(f"p{number}.png")
    pages = [{"id": f"p{number}", "text": text, "image": f"p{number}.png"} for number, text in enumerate(TEXTS)]
    index = tmp_path / "pages.jsonl"
    index.write_text("\n".join(map(json.dumps, pages)))
    find, open_page = (
        load_tool("find_pages", index="pages.jsonl", side=40, top=2),
        load_tool("open_page", index="pages.jsonl"),
    )
    context = ToolContext(Sample("text"), READER)
    found = find.call(context, {"query": "steel bridge"})
    assert found.found[0] == "p1" and found.text.startswith("[p1]") and TEXTS[1] not in found.text
    assert found.images[0].size == (40, 30) and found.images[0].getpixel((0, 0)) == (1, 0, 0)
    assert open_page.call(context, {"page": "p1"}).images[0].size == (400, 300)
    assert find.call(context, {"query": "zebra"}).found == ()
    for name in ("p9", "../p1.png"):
        with pytest.raises(CallRejected, match="there is no page"):
            open_page.call(context, {"page": name})
    for image in ("missing.png", "../outside.png", None):
        index.write_text(json.dumps({"id": "a", "text": "b", "image": image}))
        with pytest.raises(ConfigError, match="page 1"):
            load_tool("find_pages", index="pages.jsonl")


# Functions

FUNCTIONS = '''
from mmrl.environments import Observation, ToolContext

def weather(city: str, days: int = 1) -> str:
    """Forecast the weather of a city.

    More that the policy does not read.
    """
    return f"{city}: sun for {days} days"

def size(context: ToolContext, number: int) -> dict:
    """Measure a picture."""
    width, height = context.image(number).size
    return {"width": width, "height": height}

def untyped(x): return x
def many(*names: str): return names
'''


def test_a_function_of_a_file_is_a_tool(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    weather = load_tool(f"{tmp_path}/mine.py:weather")
    assert weather.name == "weather" and weather.description == "Forecast the weather of a city."
    assert weather.parameters == {
        "additionalProperties": False,
        "type": "object",
        "required": ["city"],
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
    }
    context = context_of(tmp_path)
    assert weather.call(context, {"city": "Oslo", "days": 2}) == Observation("Oslo: sun for 2 days")
    with pytest.raises(BadArguments, match="city"):
        weather.call(context, {"days": 2})
    with pytest.raises(BadArguments, match="country"):
        weather.call(context, {"city": "Oslo", "country": "Norway"})
    size = load_tool(f"{tmp_path}/mine.py:size")
    assert "context" not in size.parameters["properties"]
    assert json.loads(size.call(context, {"number": 0}).text) == {"width": 400, "height": 200}
    for name in ("untyped", "many"):
        with pytest.raises(ConfigError, match=name):
            load_tool(f"{tmp_path}/mine.py:{name}")


def test_a_function_that_returns_a_picture():
    def blank(side: int) -> Image.Image:
        return Image.new("RGB", (side, side))

    assert FunctionTool(blank).call(ToolContext(Sample("x"), READER), {"side": 3}).images[0].size == (3, 3)
