"""Protocols: the files that ship, and what is said of one that is wrong."""

import pytest

from mmrl.benchmarks.protocol import load_protocol, protocol_names
from mmrl.config import ConfigError
from mmrl.config.recipes import PROTOCOLS, list_recipes, recipes_folder

FILES = sorted((recipes_folder() / PROTOCOLS).iterdir())

RIGHT = """\
name: mine
title: Mine
paper: none
suits: [vlm]
format: refcoco
files: a file
ask: "Where is {prompt}?"
rewards: [{name: box_iou}]
metrics: [{name: mean, label: IoU, of: box_iou}]
"""


def test_shipped_protocols_load_under_their_file_name():
    assert [path.name for path in FILES] == [f"{name}.yaml" for name in protocol_names()]
    assert len(FILES) >= 11
    for path in FILES:
        protocol = load_protocol(path.stem)
        assert protocol.name == path.stem
        assert len({metric.label for metric in protocol.metrics}) == len(protocol.metrics), path
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith("# ") and first.endswith("."), path
    assert not {recipe.name for recipe in list_recipes()} & set(protocol_names())


def test_protocol_files_load_by_path(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(RIGHT, encoding="utf-8")
    protocol = load_protocol(str(mine))
    assert protocol.suits == ("vlm",)
    assert protocol.question("a cat") == "Where is a cat?"
    assert protocol.question("a {prompt}") == "Where is a {prompt}?"
    assert protocol.overridden({}) == protocol
    assert protocol.overridden({"ask": "Locate {prompt}."}).question("a cat") == "Locate a cat."


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("title: Mine -> titel: Mine", ["mine.yaml:2: titel is not a key of ProtocolConfig: did you mean title?"]),
        ("title: Mine -> title: 3", ["mine.yaml:2: title: got 3, expected text"]),
        ("{name: box_iou} -> {nam: box_iou}", ["mine.yaml:8: rewards.0.nam", "did you mean name?"]),
        ("[vlm] -> [vml]", ["mine.yaml:4: suits.0: got 'vml'"]),
        ("{prompt}? -> {promt}?", ["mine.yaml:7: ask", "nothing but the word prompt"]),
        ("paper: none\n -> ", ["paper is missing"]),
        ("label: IoU,  -> ", ["mine.yaml:9: metrics.0.label is missing"]),
    ],
)
def test_protocol_errors_name_the_line(tmp_path, wrong, message):
    before, _, after = wrong.partition(" -> ")
    mine = tmp_path / "mine.yaml"
    assert before in RIGHT
    mine.write_text(RIGHT.replace(before, after), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_protocol(str(mine))
    assert all(words in str(caught.value) for words in message), str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gen-eval", "did you mean geneval?"),
        ("xyzzy", "there are chartqa, "),
        ("nowhere/mine.yaml", "there is no file nowhere/mine.yaml"),
    ],
)
def test_unknown_protocols_are_reported_with_the_known_ones(name, message):
    with pytest.raises(ConfigError) as caught:
        load_protocol(name)
    assert message in str(caught.value)
