"""Readers of benchmarks on files made by hand, as they are published."""

import json

import pytest
from PIL import Image

from mmrl.benchmarks.readers import READERS, read_benchmark
from mmrl.errors import DataError


@pytest.fixture
def put(tmp_path):
    """Write a file: text, lines of objects (`.jsonl`), JSON, or a picture."""

    def write(name, content=None):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            Image.new("RGB", (40, 20)).save(path)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
        else:
            path.write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return write


def test_reads_geneval(put):
    line = {
        "tag": "position",
        "include": [{"class": "bench", "count": 1}, {"class": "dog", "count": 1, "position": ["right of", 0]}],
        "prompt": "a photo of a dog right of a bench",
    }
    (sample,) = read_benchmark("geneval", put("evaluation_metadata.jsonl", [line]))
    assert sample.prompt == line["prompt"]
    assert sample.metadata == {"tags": ["position"], "tag": "position", "include": line["include"]}


def test_reads_prompt_lists(put):
    folder = put("DrawBench.csv", 'Prompts,Category\n"A red car, and a sheep.",Colors\nA dog.,Counting\n')
    assert [(s.prompt, s.metadata["tags"]) for s in read_benchmark("drawbench", folder)] == [
        ("A red car, and a sheep.", ["Colors"]),
        ("A dog.", ["Counting"]),
    ]


def test_reads_parti_prompts_and_plain_lines(put):
    folder = put("PartiPrompts.tsv", "Prompt\tCategory\tChallenge\tNote\na bird\tAnimals\tBasic\t\n")
    assert [s.metadata["tags"] for s in read_benchmark("drawbench", folder)] == [["Animals"]]
    (folder / "PartiPrompts.tsv").unlink()
    put("test.txt", "a bird\n\na cat\n")
    assert [(s.prompt, s.metadata["tags"]) for s in read_benchmark("drawbench", folder)] == [
        ("a bird", []),
        ("a cat", []),
    ]


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\f"])
def test_separators_in_a_text_do_not_end_its_line(put, separator):
    put("test.txt", f"a bird{separator}on a wall\na cat\n")
    folder = put("evaluation_metadata.jsonl", json.dumps(GENEVAL | {"prompt": f"a{separator}dog"}, ensure_ascii=False))
    assert len(read_benchmark("drawbench", folder)) == 2
    assert len(read_benchmark("geneval", folder)) == 1


def test_reads_text_rendering_prompts(put):
    folder = put("test.txt", 'A sign that says "Open 24 h" and "Exit"\nMenu with “Soup” on it\n')
    assert [s.metadata["text"] for s in read_benchmark("ocr_prompts", folder)] == ["Open 24 h", "Soup"]


def test_reads_vbench_prompts_of_the_named_dimension_alone(put, caplog):
    rows = [
        {"prompt_en": "In a still frame, a stop sign", "dimension": ["temporal_flickering"]},
        {"prompt_en": "a dog", "dimension": ["object_class"], "auxiliary_info": {"object_class": {"object": "dog"}}},
        {"prompt_en": "a bear climbing a tree", "dimension": ["subject_consistency", "dynamic_degree"]},
    ]
    samples = read_benchmark("vbench", put("VBench_full_info.json", rows))
    assert [(s.id, s.metadata["tags"]) for s in samples] == [
        ("vbench-00000", ["temporal_flickering"]),
        ("vbench-00002", ["subject_consistency", "dynamic_degree"]),
    ]
    assert "1 prompts are for dimensions other" in caplog.text


def test_reads_refcoco(put):
    line = {"image": "data/coco/train2014/a.jpg", "sent": "left dog", "bbox": [1.5, 2, 30, 20], "height": 20}
    put("data/coco/train2014/a.jpg")
    (sample,) = read_benchmark("refcoco", put("refcoco_testA.jsonl", [line | {"width": 40}]))
    assert (sample.id, sample.prompt, sample.answer) == ("refcoco_testA-00001", "left dog", [1.5, 2.0, 30.0, 20.0])
    assert sample.metadata == {"tags": ["refcoco_testA"], "space": "pixel", "size": [40, 20]}
    assert sample.images[0].endswith("data/coco/train2014/a.jpg")


COCO = {
    "images": [
        {"id": 7, "file_name": "a.jpg", "width": 40, "height": 20},
        {"id": 9, "file_name": "b.jpg", "width": 40, "height": 20},
    ],
    "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 18, "bbox": [10, 5, 20, 10], "iscrowd": 0, "area": 150},
        {"id": 2, "image_id": 7, "category_id": 1, "bbox": [0, 0, 20, 20], "iscrowd": 1, "area": 400},
        {"id": 3, "image_id": 7, "category_id": 1, "bbox": [3, 3, 0, 4], "iscrowd": 0, "area": 0},
    ],
}


def test_reads_coco_with_crowds_empty_images_and_boxes_without_area(put, caplog):
    put("val2017/a.jpg")
    put("val2017/b.jpg")
    first, second = read_benchmark("coco", put("annotations/instances_val2017.json", COCO))
    assert first.prompt == "dog, person"
    assert first.answer == [{"box": [10, 5, 30, 15], "label": "dog"}]
    assert first.metadata["crowd"] == [{"box": [0, 0, 0.5, 1], "label": "person"}]
    assert (first.metadata["size"], first.metadata["tags"]) == ([40, 20], ["dog", "person"])
    assert second.answer == [] and second.metadata["crowd"] == []
    assert "1 boxes without area are left out" in caplog.text


def test_reads_countbench_as_lines_and_as_a_table(put):
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = put("images/7.png")
    put("all.jsonl", [{"image": "images/7.png", "question": "How many dogs?", "number": 3, "text": "Three dogs"}])
    (line,) = read_benchmark("countbench", folder)
    assert (line.prompt, line.answer, line.images) == ("How many dogs?", 3, (str(folder / "images/7.png"),))
    picture = {"bytes": (folder / "images/7.png").read_bytes(), "path": "7.png"}
    table = {"image": [picture], "text": ["Three dogs"], "question": ["How many dogs?"], "number": [3]}
    (folder / "data").mkdir()
    pq.write_table(pa.table(table), folder / "data/test-00000-of-00001.parquet")
    (row,) = read_benchmark("countbench", folder)
    assert (row.prompt, row.answer, row.metadata) == ("How many dogs?", 3, {"tags": ["3"]})
    assert row.images[0].startswith("data:image/png;base64,")


def test_reads_ocr_as_an_image_folder_and_as_ocrbench(put, caplog):
    put("IIIT5K/1.png")
    rows = [
        {"type": "Regular Text Recognition", "question": "what is written?", "answers": ["CENTRE"]},
        {"type": "Handwritten Mathematical Expression Recognition", "question": "formula?", "answers": ["x"]},
        {"type": "Key Information Extraction", "question": "total?", "answers": ["1", "2"]},
    ]
    known = {"dataset_name": "IIIT5K", "image_path": "IIIT5K/1.png"}
    folder = put("OCRBench.json", [row | known | {"id": n} for n, row in enumerate(rows)])
    (sample,) = read_benchmark("ocr_lines", folder)
    assert (sample.answer, sample.metadata["tags"]) == ("CENTRE", ["Regular Text Recognition"])
    assert "2 entries are not text recognition" in caplog.text
    put("metadata.jsonl", [{"file_name": "IIIT5K/1.png", "text": "the quick fox"}])
    assert [s.answer for s in read_benchmark("ocr_lines", folder)] == ["the quick fox"]


def test_reads_chartqa(put):
    put("png/41699051005347.png")
    for part in ("human", "augmented"):
        folder = put(f"test_{part}.json", [{"imgname": "41699051005347.png", "query": "How many?", "label": "14"}])
    assert [(s.answer, s.source, s.metadata["tags"]) for s in read_benchmark("chartqa", folder)] == [
        ("14", "augmented", ["augmented"]),
        ("14", "human", ["human"]),
    ]


def test_reads_mathvista(put):
    put("images/1.jpg")
    common = {"image": "images/1.jpg", "unit": None, "metadata": {"source": "GeoQA+", "skills": ["geometry reasoning"]}}
    problems = {
        "1": {"pid": "1", "question": "How far?", "query": "Hint: one decimal.\nQuestion: How far?", "choices": None}
        | {"precision": 1.0, "answer": "1.2", "question_type": "free_form", "answer_type": "float"},
        "2": {"pid": "2", "question": "Which?", "query": "", "choices": ["2", "4"], "precision": None, "answer": "4"}
        | {"question_type": "multi_choice", "answer_type": "text"},
    }
    first, second = read_benchmark(
        "mathvista", put("testmini.json", {key: row | common for key, row in problems.items()})
    )
    assert (first.id, first.answer, first.source) == ("testmini-1", "1.2", "GeoQA+")
    assert first.prompt.startswith("Hint:")
    assert first.metadata == {
        "tags": ["geometry reasoning"],
        "question_type": "free_form",
        "answer_type": "float",
        "precision": 1,
    }
    assert (second.prompt, second.metadata["choices"]) == ("Which?", ["2", "4"])


def test_reads_charades_sta(put, caplog):
    put("Charades_v1_480/3MSZA.mp4", "no video, and never opened here")
    lines = "3MSZA 24.3 30.4##person turn a light on.\n3MSZA 5.0 5.0##person sits.\n"
    (sample,) = read_benchmark("charades_sta", put("charades_sta_test.txt", lines))
    assert (sample.prompt, sample.answer) == ("person turn a light on.", [24.3, 30.4])
    assert sample.videos[0].endswith("Charades_v1_480/3MSZA.mp4")
    assert "1 lines whose end is not after their start" in caplog.text


REFCOCO = {"image": "a.jpg", "sent": "dog", "bbox": [1, 2, 30, 20], "height": 20, "width": 40}
GENEVAL = {"tag": "colors", "include": [{"class": "dog", "count": 1}], "prompt": "a dog"}
CHART = {"imgname": "a.jpg", "query": "How many?", "label": "14"}


@pytest.mark.parametrize(
    ("format", "name", "content", "message"),
    [
        (
            "geneval",
            "evaluation_metadata.jsonl",
            [GENEVAL, GENEVAL | {"include": []}],
            "metadata.jsonl:2: include is []",
        ),
        ("geneval", "evaluation_metadata.jsonl", '{"tag": \n', "evaluation_metadata.jsonl:1: is not JSON"),
        (
            "geneval",
            "evaluation_metadata.jsonl",
            [{"include": [{"class": "dog"}]}],
            "entry 0: there is no key",
        ),
        (
            "drawbench",
            "a.csv",
            "Text,Category\nA,B\n",
            "a.csv:1: its columns are Text, Category; expected Prompts or Prompt",
        ),
        ("drawbench", "a.csv", "Prompts,Category\nA,B\n,C\n", "a.csv:3: there is no prompt in the column Prompts"),
        ("ocr_prompts", "test.txt", 'a "b"\nno quotes\n', "test.txt:2: 'no quotes' names no text"),
        (
            "vbench",
            "VBench_full_info.json",
            [{"prompt_en": "a", "dimension": "b"}],
            "entry 0: dimension is 'b'; expected a list",
        ),
        ("refcoco", "a.jsonl", [REFCOCO | {"image": "../b.jpg"}], "a.jsonl:1: '../b.jpg' leads out of"),
        ("refcoco", "a.jsonl", [REFCOCO | {"image": "/etc/passwd"}], "a.jsonl:1: '/etc/passwd' leads out of"),
        ("refcoco", "a.jsonl", [REFCOCO | {"image": "C:\\b.jpg"}], "leads out of"),
        ("refcoco", "a.jsonl", [REFCOCO | {"image": "b.jpg"}], "a.jsonl:1: there is no file"),
        (
            "refcoco",
            "a.jsonl",
            [REFCOCO | {"bbox": [30, 20, 1, 2]}],
            "bbox is [30, 20, 1, 2]; expected [x1, y1, x2, y2] in pixels",
        ),
        ("refcoco", "a.jsonl", [REFCOCO | {"bbox": [1, 2, 3, "4"]}], "expected a list of 4 numbers"),
        (
            "coco",
            "instances_v.json",
            COCO | {"annotations": [{"image_id": 8}]},
            "image_id is 8; expected the id of one of the images",
        ),
        ("coco", "instances_v.json", COCO, "there is no folder v, images/v or images"),
        ("coco", "instances_v.json", [], "expected an object with images, annotations and categories"),
        (
            "countbench",
            "a.jsonl",
            [{"image": "a.jpg", "question": "?", "number": 2.5}],
            "number is 2.5; expected a whole number",
        ),
        ("ocr_lines", "metadata.jsonl", [{"file_name": "a.jpg", "text": " "}], "text is ' '; expected a text that is"),
        ("chartqa", "test_human.json", [CHART | {"label": None}], "entry 0: label is None; expected a text"),
        ("chartqa", "test_human.json", {"a": CHART | {"imgname": "b.png"}}, "entry 'a': there is no file"),
        (
            "mathvista",
            "testmini.json",
            {"1": {"question_type": "essay", "answer_type": "text"}},
            "entry '1': question_type",
        ),
        ("charades_sta", "charades_sta_test.txt", "A 1 2##x\n", "there is no folder videos or Charades_v1_480"),
        ("charades_sta", "videos/../charades_sta_test.txt", "A 1 2 x\n", "charades_sta_test.txt:1: is 'A 1 2 x'"),
        ("charades_sta", "videos/../charades_sta_test.txt", "A 1 2##x\n", "_test.txt:1: there is no video"),
        ("charades_sta", "videos/../charades_sta_test.txt", "../A 1 2##x\n", "charades_sta_test.txt:1: is '../A"),
        ("coco", "other.json", {}, "there is no file annotations/instances_*.json or instances_*.json in it"),
        ("cocoo", "other.json", {}, "there is no benchmark format 'cocoo': did you mean coco"),
        ("drawbench", "a.txt", "\n", "its drawbench files hold no samples"),
    ],
)
def test_reader_errors_name_file_and_place(put, format, name, content, message):
    put("a.jpg")
    put("png/a.jpg")
    if name.startswith("videos/"):
        put("videos/b.mp4", "")
    with pytest.raises(DataError) as caught:
        read_benchmark(format, put(name, content))
    assert message in str(caught.value), str(caught.value)


def test_missing_folders_raise(tmp_path):
    for format in READERS.names():
        with pytest.raises(DataError, match="there is no such folder"):
            read_benchmark(format, tmp_path / "nowhere")
