"""The vocabulary gate finds each kind of relapse, and names the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.counts import count
from tools.vocabulary import ROOTS, findings

ROOT = Path(__file__).parents[1]


def found(folder: Path, source: str) -> list[str]:
    (folder / "mmrl").mkdir(exist_ok=True)
    (folder / "mmrl" / "one.py").write_text(source, encoding="utf-8")
    return [line.removeprefix(str(folder)) for line in findings([folder / "mmrl"], folder)]


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("def refuse_misfit(x):\n    pass\n", 1, "refuse, misfit is not a term"),
        ("def f(asked):\n    pass\n", 1, "asked is not a term"),
        ("try:\n    f()\nexcept ValueError as why:\n    raise\n", 3, "why is not a term"),
        ("class WatchedRewards:\n    pass\n", 1, "watched is not a term"),
        ('x = 1\n"""How far it goes."""\n', 2, "begins with a fragment"),
        ('def f():\n    """Whether it is so."""\n', 2, "begins with a fragment"),
        ("y = 2  # as the user asked\n", 1, "'asked' in prose"),
        ('z = f"{1} was due"\n', 1, "'due' in prose"),
    ],
)
def test_findings_name_line_and_word(tmp_path, source, line, message):
    (finding,) = found(tmp_path, source)
    assert finding.startswith(f"/mmrl/one.py:{line}: ") and message in finding


@pytest.mark.parametrize(
    "source",
    [
        '"""Rewards that differ because of rounding, due to float32."""\n',
        'def f():\n    """Return the width."""\n',
        "heldout = 1\n",
    ],
)
def test_plain_code_has_no_findings(tmp_path, source):
    assert found(tmp_path, source) == []


def test_duplicate_names_are_found(tmp_path):
    (tmp_path / "mmrl" / "a").mkdir(parents=True)
    (tmp_path / "mmrl" / "a" / "one.py").write_text("class Table:\n    pass\n")
    lines = found(tmp_path, "class Table:\n    pass\n")
    assert len(lines) == 2 and any("module name one" in line for line in lines)
    assert any("class name Table" in line for line in lines)


def test_counts_find_import_cycles(tmp_path):
    (tmp_path / "mmrl").mkdir()
    for name, other in (("a", "b"), ("b", "a"), ("c", "a")):
        (tmp_path / "mmrl" / f"{name}.py").write_text(f'"""A module."""\nimport mmrl.{other}\n')
    counts = count(tmp_path)
    assert counts["import cycles of modules"] == 1 and counts["files in mmrl"] == 3


@pytest.mark.slow
def test_repository_has_no_findings():
    assert {"mmrl", "tools", "tests"} <= set(ROOTS)
    assert list(findings([ROOT / root for root in ROOTS], ROOT)) == []


def test_module_names_of_tests_may_recur(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / "test_one.py").write_text("class Table:\n    pass\n")
    (line,) = findings([tmp_path / "tests"], tmp_path)
    assert "class name Table" in line
