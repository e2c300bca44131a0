"""Data sets are read exactly, or refused with file and line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.data import DataError, RewardChoice, Sample, read_samples, write_samples
from mmrl.data.jsonl import scan_samples

FULL = Sample(
    id="a",
    prompt="zwei rote Kreise ●",
    messages=({"role": "user", "content": "how many?"},),
    images=("a.png",),
    answer={"box": [0, 1.5]},
    task="counting",
    source="pets",
    rewards=(RewardChoice("box_iou", 0.5, {"space": "pixel"}), RewardChoice("format")),
    metadata={"space": "pixel", "missing": None},
)


def test_written_samples_are_read_back(tmp_path):
    path = tmp_path / "new" / "data.jsonl"
    write_samples([FULL, Sample(id="b", prompt="x")], path)
    assert read_samples(path) == [FULL, Sample(id="b", prompt="x")]
    assert path.read_text(encoding="utf-8").splitlines()[1] == '{"id": "b", "prompt": "x"}'
    assert [p.name for p in path.parent.iterdir()] == ["data.jsonl"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(prompt=st.text(min_size=1), answer=json_values, metadata=st.dictionaries(st.text(), json_values, max_size=3))
def test_any_text_and_json_survive_a_round_trip(tmp_path_factory, prompt, answer, metadata):
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    sample = Sample(id="a", prompt=prompt, answer=answer, metadata=metadata)
    write_samples([sample], path)
    assert read_samples(path) == [sample]


def test_lines_without_an_id_are_named_by_place_and_blank_lines_skipped(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('\ufeff{"prompt": "x"}\n\n{"prompt": "y"}\n', encoding="utf-8")
    assert [sample.id for sample in read_samples(path)] == ["mine-1", "mine-3"]


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"prompt": "y", "answer": ' + "1" * 5000 + "}", r"data.jsonl:2: is not JSON that can be read: .*4300 digits"),
        ('{"prompt": "y", "prompt": "z"}', r"data.jsonl:2: has the key 'prompt' twice in one object: keep one of them"),
        ('{"prompt": "y", "metadata": {"a": 1, "b": 2, "a": 1}}', r"data.jsonl:2: has the key 'a' twice"),
        ('{"prompt": "y', r"data.jsonl:2: is not JSON: Unterminated string starting at column 12"),
        ('{"prompt": "y"', r"data.jsonl:2: is not JSON: Expecting ',' delimiter at column 15"),
        ('["y"]', r"data.jsonl:2: is a list; a sample is an object"),
        ('{"promt": "y"}', r"data.jsonl:2: 'promt' is not a key of Sample: did you mean prompt\?"),
        ('{"prompt": "y", "zzz": 1}', r":2: 'zzz' is not a key of Sample: .*'metadata'"),
        ('{"prompt": "y", "rewards": [{"name": "a", "wieght": 2}]}', r":2: rewards: 'wieght'.*did you mean weight"),
        ('{"prompt": "y", "rewards": ["a"]}', r":2: rewards.0: "),
        (
            '{"prompt": "y", "image": "a.png", "conditions": {"image": "b.png"}}',
            r":2: image stands both in the line and",
        ),
        ('{"prompt": "y", "image": "a.png", "conditions": 3}', r":2: '?image'?|:2: conditions: "),
        ('{"prompt": "y", "mask_imag": "a.png"}', r"did you mean mask_image"),
        ('{"prompt": 3}', r":2: prompt: Input should be a valid string, not 3"),
        ('{"prompt": "y", "images": "a.png"}', r":2: images: .*not 'a.png'"),
        ('{"id": 7, "prompt": "y"}', r":2: id: "),
        ('{"messages": [{"role": "user"}]}', r":2: messages.0: its content is neither a text nor a list of parts"),
        ('{"messages": [{"role": "user", "content": ["x"]}]}', r":2: messages.0: its content is neither"),
        ('{"messages": [{"content": "x"}, {"role": "user", "content": "y"}]}', r":2: messages.0: has no role"),
        ('{"messages": [{"role": "system", "content": "x"}]}', r":2: messages: none has the role 'user'"),
        ('{"messages": ["x"]}', r":2: messages.0: Input should be an object"),
        ('{"id": "b"}', r":2: has no prompt, no messages and no conditions"),
        ('{"id": "a", "prompt": "y"}', r":2: the id 'a' is already that of line 1"),
        (r'{"prompt": "y \ud800 z"}', r":2: 'prompt' contains half of a character \(\\ud800\), which is no text"),
        (r'{"prompt": "y", "metadata": {"k": ["\udfff"]}}', r":2: 'metadata' contains half of a character \(\\udfff\)"),
        ('{"prompt": "y", "image": "https://a.b/c.png"}', r":2: https://a.b/c.png is an address: download it"),
        (
            '{"prompt": "y", "chosen": {"image": "HTTP://a/c.png"}, "rejected": ""}',
            r":2: HTTP://a/c.png is an address",
        ),
    ],
)
def test_bad_lines_raise_with_file_and_line(tmp_path, line, message):
    path = tmp_path / "data.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        read_samples(path)


def test_scan_reports_every_problem_of_every_line(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(
        b'{"id": "a", "prompt": "x"}\n{"promt": 1, "imges": 2}\n\n\xff\n{"id": "a", "prompt": "y"}\n{"prompt": 3}\n'
    )
    lines = list(scan_samples(path))
    assert [(line.number, len(line.problems)) for line in lines] == [(1, 0), (2, 3), (4, 1), (5, 1), (6, 1)]
    assert lines[3].problems == ("the id 'a' is already that of line 1",)


def test_missing_empty_and_binary_files_raise(tmp_path):
    with pytest.raises(DataError, match=r"none.jsonl: cannot be read: No such file"):
        read_samples(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match=r"empty.jsonl: holds no samples"):
        read_samples(tmp_path / "empty.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"binary.jsonl:1: is not UTF-8"):
        read_samples(tmp_path / "binary.jsonl")


def test_samples_that_are_not_json_leave_the_old_file(tmp_path):
    path = tmp_path / "data.jsonl"
    write_samples([FULL], path)
    with pytest.raises(DataError, match=r"sample 'bad' cannot be written as JSON"):
        write_samples([Sample(id="bad", prompt="x", answer=object())], path)
    assert read_samples(path) == [FULL] and len(list(tmp_path.iterdir())) == 1


def test_pipeline_arguments_become_conditions(tmp_path):
    path = tmp_path / "edits.jsonl"
    path.write_text(
        '{"prompt": "bluer", "image": "a.png", "conditions": {"strength": 0.5}}\n{"image": "b.png", "num_frames": 9}\n'
    )
    first, second = read_samples(path)
    assert first.conditions == {"image": "a.png", "strength": 0.5}
    assert second.conditions == {"image": "b.png", "num_frames": 9} and second.prompt == ""
    write_samples([first, second], path)
    assert read_samples(path) == [first, second]
