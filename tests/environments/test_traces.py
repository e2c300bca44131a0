"""`mmrl data traces`: small real files in the published formats become samples that the environment replays."""

from __future__ import annotations

import gzip
import json
import struct
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.config.environment import EnvironmentConfig
from mmrl.data.sources import load_source
from mmrl.environments import EpisodeBatch, build_environment
from mmrl.environments.traces.tfrecord import features_of, records_in
from mmrl.errors import DataError
from tests.environments.worlds import READER

SCREENS = "mmrl_shapeworld.worlds.button_environment:ButtonScreens"


def run(*arguments: object, code: int = 0):
    result = CliRunner().invoke(app, ["data", "traces", *map(str, arguments)])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def png(shade: int) -> bytes:
    file = BytesIO()
    Image.fromarray(np.full((200, 100, 3), shade, np.uint8)).save(file, "PNG")
    return file.getvalue()


def field(number: int, content: bytes) -> bytes:
    length, head = len(content), b""
    while length > 0x7F:
        head, length = head + bytes([length & 0x7F | 0x80]), length >> 7
    return bytes([number << 3 | 2]) + head + bytes([length]) + content


def example(**features: list[bytes] | list[int]) -> bytes:
    entries = b""
    for name, values in features.items():
        if isinstance(values[0], int):  # packed, as TensorFlow writes them
            feature = field(3, field(1, b"".join(bytes([each & 0x7F | 0x80, each >> 7]) for each in values)))
        else:
            feature = field(1, b"".join(field(1, each) for each in values))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def crc32c(content: bytes) -> int:
    """Return the masked checksum, computed bit by bit from the polynomial."""
    crc = 0xFFFFFFFF
    for byte in content:
        for bit in range(8):
            carry = (crc ^ (byte >> bit)) & 1
            crc = crc >> 1 ^ 0x82F63B78 * carry
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_records(path, *contents: bytes):
    with gzip.open(path, "wb") as file:
        for content in contents:
            length = struct.pack("<Q", len(content))
            file.write(length + struct.pack("<I", crc32c(length)) + content + struct.pack("<I", crc32c(content)))


ACTIONS = [
    {"action_type": "open_app", "app_name": "Clock"},
    {"action_type": "click", "x": 20, "y": 100},
    {"action_type": "input_text", "text": ""},
    {"action_type": "scroll", "direction": "up"},
    {"action_type": "navigate_back"},
]


def episode(**changes) -> bytes:
    features = {
        "episode_id": [300],
        "goal": ["Wake me at 7 — please".encode()],
        "screenshots": [png(10 * n) for n in range(6)],
        "screenshot_widths": [100] * 6,
        "actions": [json.dumps(action).encode() for action in ACTIONS],
        "step_instructions": [b"do it"] * 5,
    }
    return example(**{**features, **changes})


def test_the_checksum_of_these_tests_has_the_check_value_of_crc32c():
    assert crc32c(b"123456789") == (((0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def test_android_control_is_read_and_replayed(tmp_path):
    write_records(tmp_path / "android_control-00000-of-00001", episode(), episode(episode_id=[301]))
    assert "2 traces" in run("android_control", tmp_path, tmp_path / "out").output
    first, second = load_source(str(tmp_path / "out" / "traces.jsonl"))
    assert (first.id, second.id) == ("android_control-300", "android_control-301") and "—" in first.prompt
    environment = build_environment(EnvironmentConfig(name="recorded", args={"space": "norm_1000"}))
    batch = EpisodeBatch(environment, [first], READER)
    shades = []
    for action in ("open_app(app_name='clock')", "tap(200, 510)", "type('')", "scroll('up')", "press_back()"):
        shades.append(int(np.asarray(batch.step({0: action})[0].observation.images[0])[0, 0, 0]))
    assert shades == [10, 20, 30, 40, 50]
    assert batch.step({0: "finished()"})[0].rewards["match"] == 1 and batch.outcomes()[0]["success"]
    assert first.demonstration["turns"][1] == '{"action": "click", "point": [20, 100]}'
    run("android_control", tmp_path, tmp_path / "out", code=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"screenshots": [png(1)]}, "record 0: has 1 screenshots and 5 actions"),
        ({"screenshots": [b"GIF89a"] * 6}, "record 0, screen 0: is no picture"),
        ({"actions": [b"{"] * 5}, "record 0, action 0: is not JSON"),
        ({"actions": [b'{"action_type": "fly"}'] * 5}, "action_type is 'fly'"),
        ({"actions": [b'{"action_type": "click", "x": "1", "y": 2}'] * 5}, "x is '1'; expected a number"),
        ({"goal": [b"a", b"b"]}, "goal has 2 values"),
        ({"goal": [b"\xff"]}, "is not UTF-8"),
    ],
)
def test_malformed_episodes_name_file_and_record(tmp_path, changes, message):
    write_records(tmp_path / "android_control-0", episode(**changes))
    result = run("android_control", tmp_path, tmp_path / "out", code=1)
    assert "android_control-0" in result.output and message in result.output.replace("\n", "")


def test_damaged_records_are_errors(tmp_path):
    path = tmp_path / "android_control-0"
    write_records(path, episode())
    whole = gzip.decompress(path.read_bytes())
    for content, message in (
        (whole[:40], "is cut off"),
        (whole[:5], "is cut off"),
        (b"\1" + whole[1:], "its length is damaged"),
        (struct.pack("<Q", 2**40) + struct.pack("<I", crc32c(struct.pack("<Q", 2**40))), "at most"),
    ):
        path.write_bytes(gzip.compress(content))
        with pytest.raises(DataError, match=f"record 0: .*{message}"):
            list(records_in(path))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="record 0: cannot be read"):
        list(records_in(path))
    for content in (b"\x0a\x7f", b"\x0f", b"\x0a" + b"\xff" * 11):
        with pytest.raises(DataError, match=r"is no tf\.train\.Example"):
            features_of(content, "here")


def candidate(x: float, y: float) -> str:
    attributes = json.dumps({"bounding_box_rect": f"{x},{y},20,30", "class": "a"})
    return json.dumps({"tag": "a", "attributes": attributes, "is_original_target": True})


def rows(name: str = "t1") -> list[dict]:
    kinds = ({"op": "CLICK", "value": ""}, {"op": "TYPE", "value": "Rome"}, {"op": "SELECT", "value": "2"})
    return [
        {
            "annotation_id": name,
            "confirmed_task": "Book a table",
            "website": "yelp",
            "domain": "Travel",
            "action_reprs": ["a", "b", "c"],
            "target_action_index": str(number),
            "operation": json.dumps({"original_op": kind["op"], **kind}),
            "pos_candidates": [candidate(10, 20), candidate(60, 20)],
            "screenshot": {"bytes": png(10 * number), "path": None},
        }
        for number, kind in enumerate(kinds)
    ]


def test_mind2web_tables_are_read_and_replayed(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    nowhere = rows("t3")
    nowhere[1]["pos_candidates"] = []
    table = [*rows()[1:], *rows("t2")[:2], rows()[0], *nowhere]  # in another order, and one task not whole
    parquet.write_table(arrow.Table.from_pylist(table), tmp_path / "train.parquet")
    assert "1 traces" in run("mind2web", tmp_path, tmp_path / "out").output
    (sample,) = load_source(str(tmp_path / "out" / "traces.jsonl"))
    assert sample.source == "mind2web-Travel" and sample.tags == ["website: yelp"]
    batch = EpisodeBatch(build_environment(EnvironmentConfig(name="recorded")), [sample], READER)
    actions = ("click(70, 30)", '{"action": "type", "point": [12, 22], "text": "rome"}',
               '{"action": "select", "point": [12, 22], "text": "2"}')  # fmt: skip
    assert [batch.step({0: action})[0].rewards["match"] for action in actions] == [1, 1, 1]


def test_mind2web_files_of_json_name_their_screenshots(tmp_path):
    task = {"annotation_id": "t1", "confirmed_task": "Book", "actions": rows()}
    for number, action in enumerate(task["actions"]):
        action.update(operation=json.loads(action["operation"]), screenshot=f"shots/{number}.png")
    (tmp_path / "shots").mkdir()
    for number in range(3):
        (tmp_path / "shots" / f"{number}.png").write_bytes(png(number))
    path = tmp_path / "train.json"
    path.write_text(json.dumps([task]))
    run("mind2web", path, tmp_path / "out")
    assert load_source(str(tmp_path / "out" / "traces.jsonl"))[0].id == "mind2web-t1"
    for name, message in (("../x.png", "leads out of"), ("/etc/passwd", "leads out of"), ("none.png", "no file")):
        task["actions"][1]["screenshot"] = name
        path.write_text(json.dumps([task]))
        result = run("mind2web", path, tmp_path / "bad", code=1)
        assert message in result.output and "entry 0" in result.output


def test_scripted_annotators_write_their_traces(tmp_path):
    run(SCREENS, "shapeworld:screens-development", tmp_path, "--annotator", "careless", "--limit", 3)
    samples = load_source(str(tmp_path / "traces.jsonl"))
    assert len(samples) == 3 and (tmp_path / "screens" / "00002-0.png").is_file()
    batch = EpisodeBatch(
        build_environment(EnvironmentConfig(name="recorded", args={"match": "exact"})), samples, READER
    )
    while batch.live:
        batch.step({row: samples[row].demonstration["turns"][batch.turns[row]] for row in batch.live})
    assert all(outcome["success"] for outcome in batch.outcomes())
    assert "no scripted annotator 'lazy'" in run(
        SCREENS, "shapeworld:screens-development", tmp_path / "b", "--annotator", "lazy", code=2
    ).output.replace("\n", "")
