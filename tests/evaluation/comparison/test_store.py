"""The store after a crash: whole batches are kept, the rest is generated again."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from mmrl.data.sample import Sample
from mmrl.errors import ResultError
from mmrl.evaluation.comparison.store import ComparisonRow, SubjectStore, file_name


def line(sample: int, batch: int, **more) -> ComparisonRow:
    text = {"scores": {"x": sample / 3}, "status": {"x": "ok"}} | more
    return ComparisonRow(batch=batch, sample=sample, draw=0, id=f"s{sample}", **text)


@pytest.fixture
def store(tmp_path) -> SubjectStore:
    made = SubjectStore(tmp_path, "one")
    made.append([line(0, 0), line(1, 0, scores={"x": math.nan}, status={"x": "error"}, reasons={"x": "down"})])
    made.append([line(2, 1, answer="four\u2028●", tokens=3)])
    made.save_samples(
        [Sample(id=f"s{n}", prompt="?", images=("data:image/png;base64,AAAA",), answer=n) for n in range(3)]
    )
    return made


def test_store_reads_appended_rows_with_null_as_nan(store):
    found = store.lines()
    assert [each.sample for each in found] == [0, 1, 2] and found[2].answer == "four\u2028●"
    assert math.isnan(found[1].scores["x"]) and found[1].reasons == {"x": "down"}
    assert '"why": {"x": "down"}' in store.rows_path.read_text(), "the key in files"
    answers = store.answers()
    np.testing.assert_array_equal(answers.values("x"), [0, math.nan, 2 / 3])
    assert answers.rows[2].sample == Sample(id="s2", prompt="?", answer=2)  # without its media


def test_halves_of_characters_do_not_make_rows_unreadable(store):
    store.append([line(3, 2, answer="four \ud83d", status={"x": "error"}, reasons={"x": "no file \udcff.png"})])
    assert (store.lines()[3].answer, store.lines()[3].reasons) == ("four ?", {"x": "no file ?.png"})
    assert len(store.resume([2, 1, 1])) == 4


def test_truncated_store_keeps_whole_batches(store):
    whole = store.rows_path.read_bytes()
    first = whole.index(b"\n", whole.index(b"\n") + 1) + 1  # the end of the first batch
    for length in {*range(0, len(whole), 11), first - 1, first, first + 1, len(whole) - 1, len(whole)}:
        store.rows_path.write_bytes(whole[:length])
        kept = store.resume([2, 1, 1])
        assert len(kept) == (3 if length == len(whole) else 2 if length >= first else 0)
        assert store.rows_path.read_bytes() == whole[: len(whole) if len(kept) == 3 else first if kept else 0]


def test_samples_of_conditions_alone_are_stored_without_their_image(store):
    store.save_samples([Sample(id="s", conditions={"image": "data:image/png;base64,AAAA", "strength": 0.5})])
    assert store.samples()[0].conditions == {"image": "not kept", "strength": 0.5}


def test_batches_of_other_sizes_are_not_finished(store):
    assert len(store.resume([3, 3])) == 0


def test_damaged_lines_raise_with_their_number(store):
    store.rows_path.write_bytes(b'{"batch": 0}\n' + store.rows_path.read_bytes())
    with pytest.raises(ResultError, match=r"one\.jsonl:1: is no row of a comparison: sample"):
        store.resume([2, 1])


def test_missing_rows_are_found(store):
    store.resume([2])
    with pytest.raises(ResultError, match="does not hold 1 rows of each of 3 samples"):
        store.answers()


def test_small_images_are_stored_unchanged_and_large_ones_resized(store):
    random = np.random.default_rng(0)
    small = Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8))
    store.save_picture(small, 0, 0)
    np.testing.assert_array_equal(np.asarray(store.picture(0)), np.asarray(small))
    store.save_picture(Image.new("RGB", (1024, 512), "red"), 1, 1)
    assert store.picture(1, 1).size == (512, 256)
    assert store.picture(2) is None


def test_file_names_are_valid_and_distinct():
    assert file_name("runs/quickstart/seed-0@base", "0a1b2c3d4e") == "quickstart-seed-0@base-0a1b2c3d"
    assert file_name("../../etc/passwd", "0a1b2c3d4e") == "etc-passwd-0a1b2c3d"
    assert "/" not in file_name("a b/ü:?*" * 40, "0a1b2c3d4e") and len(file_name("x" * 400, "0a1b2c3d")) < 80
