"""Tables are read as lines are: exactly, or refused by row."""

from __future__ import annotations

import sys
from io import BytesIO

import numpy as np
import pytest

from mmrl.data import DataError, Sample, write_samples
from mmrl.data.media.decode import load_image, load_video
from mmrl.data.sources import load_source, locate, scan_source
from tests.data.media_files import few_colours, moving_square

datasets = pytest.importorskip("datasets", reason="an optional dependency")
arrow = pytest.importorskip("pyarrow")


def png(image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "png")
    return buffer.getvalue()


@pytest.fixture
def table():
    picture = moving_square(1)[0]
    features = datasets.Features(
        {
            "prompt": datasets.Value("string"),
            "images": datasets.List(datasets.Image()),
            "answer": datasets.Value("int64"),
            "task": datasets.Value("string"),
            "metadata": {"space": datasets.Value("string")},
            "level": datasets.Value("int64"),
        }
    )
    rows = {
        "prompt": ["one", "two"],
        "images": [[{"bytes": png(picture), "path": None}], []],
        "answer": [3, None],
        "task": ["counting", None],
        "metadata": [{"space": "pixel"}, {"space": None}],
        "level": [7, 8],
    }
    return datasets.Dataset.from_dict(rows, features=features)


def check(found):
    first, second = found
    assert (first.prompt, first.answer, first.task) == ("one", 3, "counting")
    assert first.metadata == {"space": "pixel", "level": 7}
    assert first.images[0].startswith("data:image/png;base64,")
    np.testing.assert_array_equal(np.asarray(load_image(first.images[0])), np.asarray(moving_square(1)[0]))
    assert (second.answer, second.images, second.task, second.metadata) == (None, (), None, {"level": 8})


@pytest.mark.integration
def test_parquet_folders_and_datasets_hold_equal_samples(table, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    datasets.disable_progress_bars()
    table.to_parquet(tmp_path / "pets.parquet")
    table.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(tmp_path / "splits")
    (tmp_path / "local").mkdir()
    table.to_parquet(tmp_path / "local" / "train.parquet")
    for source in ("pets.parquet", "saved", "splits:test"):
        found = load_source(str(tmp_path / source))
        check(found)
        assert [sample.id for sample in found] == [f"{source.partition('.')[0].partition(':')[0]}-{n}" for n in (0, 1)]
    check(load_source(f"hf:{tmp_path / 'local'}:train"))
    with pytest.raises(DataError, match=r"has no split 'dev'; there are .*:train, .*:test"):
        load_source(f"{tmp_path / 'splits'}:dev")
    with pytest.raises(DataError, match=r"has no split ''"):
        load_source(str(tmp_path / "splits"))


@pytest.mark.parametrize(
    "form", ["splits:test", "./splits:test", "splits/:test", "{0}/splits:test", "{0}//splits:test"]
)
def test_a_split_of_a_saved_folder_is_found_by_any_path_to_it(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = {name: datasets.Dataset.from_dict({"prompt": [name]}) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk("splits")
    assert [sample.prompt for sample in load_source(form.format(tmp_path))] == ["test"]


def test_json_lines_are_read_with_relative_media(tmp_path):
    write_samples([Sample(id="a", prompt="x", images=("p/a.png",))], tmp_path / "a.jsonl")
    assert load_source(str(tmp_path / "a.jsonl"))[0].images == (f"{tmp_path}/p/a.png",)
    with pytest.raises(DataError, match="in JSON Lines, write the keys of a sample"):
        load_source(str(tmp_path / "a.jsonl"), {"question": "prompt"})


def write(path, **columns):
    import pyarrow.parquet

    pyarrow.parquet.write_table(arrow.table(columns), path)
    return str(path)


def test_columns_are_renamed_and_single_media_become_lists(tmp_path):
    clip = BytesIO()
    frames = few_colours(moving_square(3))
    frames[0].save(clip, "gif", save_all=True, append_images=frames[1:])
    path = write(tmp_path / "a.parquet", question=["x"], clip=[clip.getvalue()], picture=["p.png"])
    names = {"question": "prompt", "clip": "videos", "picture": "images"}
    (sample,) = load_source(path, names)
    assert sample.prompt == "x" and sample.images == (f"{tmp_path}/p.png",)
    np.testing.assert_array_equal(np.stack(load_video(sample.videos[0])), np.stack(frames))
    with pytest.raises(DataError, match=r"has no column queston; it has question, clip, picture"):
        load_source(path, {"queston": "prompt"})
    with pytest.raises(
        DataError, match=r"a\.parquet: row 0: columns: 'promt', to which 'question' is renamed, is not a key"
    ):
        load_source(path, {"question": "promt"})


@pytest.mark.parametrize(
    "columns, problem",
    [
        ({"promt": ["x"]}, r"row 0: 'promt' is not a key of a sample: did you mean prompt\?"),
        ({"prompt": [""]}, r"row 0: has no prompt, no messages and no conditions"),
        ({"prompt": ["x", "y"], "id": ["a", "a"]}, r"row 1: the id 'a' is already that of row 0"),
        ({"prompt": [1]}, r"row 0: prompt: Input should be a valid string"),
    ],
)
def test_bad_rows_are_reported_by_number(tmp_path, columns, problem):
    path = write(tmp_path / "a.parquet", **columns)
    with pytest.raises(DataError, match=problem):
        load_source(path)
    (bad,) = [line for line in scan_source(path) if line.problems]
    assert f"{locate(path, bad.number)}: {bad.problems[0]}".startswith(path)


def test_csv_rows_are_samples_and_other_columns_metadata(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text('id,prompt,level\n1,a red circle,1\n2,"a blue square, large",\n', encoding="utf-8-sig")
    assert [(sample.id, sample.prompt, sample.metadata) for sample in load_source(str(file))] == [
        ("1", "a red circle", {"level": "1"}),
        ("2", "a blue square, large", {}),
    ]


def test_a_csv_cell_may_have_a_picture(tmp_path):
    file, picture = tmp_path / "mine.csv", "data:image/png;base64," + "A" * 200_000
    file.write_text(f'prompt,images\na,"{picture}"\n')
    assert load_source(str(file))[0].images == (picture,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,prompt\n1,a red circle, large\n", r"mine.csv: row 0 \(line 2\) has more cells than there are columns"),
        (b'id,prompt\n1,"a red circle\n', "mine.csv: cannot be read as CSV in UTF-8: unexpected end of data"),
        (b"id,prompt\n1,\xff\n", "mine.csv: cannot be read as CSV in UTF-8: .*invalid start byte"),
        (b"id,promt\n1,a\n", r"row 0: 'promt' is not a key of a sample: did you mean prompt\? Rename the column"),
        (b"a red circle,1\na blue square,2\n", "no column prompt, .* its columns by its first row are a red circle, 1"),
        (b"id,prompt\n", "mine.csv: holds no samples"),
        (b"prompt,prompt\na,b\n", "mine.csv: the first row names the column 'prompt' twice: keep one of them"),
    ],
)
def test_bad_csv_raises_with_the_place(tmp_path, content, message):
    file = tmp_path / "mine.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_source(str(file))


def test_a_line_of_a_text_file_is_a_prompt(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text('a red circle\n\n{"not": "JSON"}\n')
    assert [(sample.id, sample.prompt) for sample in load_source(str(file))] == [
        ("mine-1", "a red circle"),
        ("mine-3", '{"not": "JSON"}'),
    ]


def test_a_folder_that_is_no_data_set_is_named_as_one(tmp_path):
    with pytest.raises(DataError, match="is a folder, and save_to_disk of datasets did not write it: name a file"):
        load_source(str(tmp_path))


def test_unreadable_sources_raise(tmp_path, monkeypatch):
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(DataError, match=r"text\.parquet: cannot be read as Parquet"):
        load_source(str(tmp_path / "text.parquet"))
    with pytest.raises(DataError, match=r"none\.parquet: cannot be read as Parquet"):
        load_source(str(tmp_path / "none.parquet"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match="needs datasets, which is not installed: pip install datasets"):
        load_source("hf:owner/name:train")
    with pytest.raises(DataError, match="reading Parquet needs pyarrow, which is not installed"):
        load_source(str(tmp_path / "text.parquet"))
