"""`mmrl evaluate` takes subjects without the name of a command, and `diff` beside them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.cli.errors import exit_code
from mmrl.errors import EvaluationError, ResultError
from mmrl.evaluation.comparison.progress import ComparisonDisplay
from mmrl.evaluation.comparison.result_tables import ResultCell, ResultTable, as_markdown, shared_folder


def run(*words: str):
    return CliRunner().invoke(app, ["evaluate", *words])


def test_evaluate_help_lists_arguments_and_subcommands():
    result = run("--help").output
    assert (
        "--protocol" in result
        and "mmrl evaluate diff A B" in result
        and "Usage: mmrl evaluate " in " ".join(result.split())
    )
    about_diff = " ".join(run("diff", "--help").output.split())
    assert "--tolerance" in about_diff and "exit code is 1 on a regression" in about_diff


def test_runs_may_be_named_like_a_subcommand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "diff").mkdir()
    assert "diff is not a run" in run("./diff").stderr  # it was taken for a run's folder
    assert "Missing argument 'A'" in run("diff").stderr


@pytest.mark.parametrize("words", [[], ["--fresh"], ["--protocol", "geneval"]])
def test_evaluate_requires_a_subject(words):
    result = run(*words)
    assert result.exit_code == 2 and "Missing argument 'SUBJECT...'" in result.stderr


def test_unusable_results_have_their_own_exit_code():
    assert exit_code(ResultError("x")) == 2 and exit_code(EvaluationError("x")) == 1


def test_progress_without_a_terminal_prints_a_line_per_batch():
    lines, clock = [], iter([0.0, 2.0, 3.0])
    display = ComparisonDisplay(lines.append, lambda: next(clock))
    display.start("run@base", 20, 60)
    display.advance(20, "shapeworld", 0.25)
    display.advance(20, "shapeworld", 0.5)
    assert lines == [
        "run@base  20/60 rows are there already",
        "run@base  40/60 rows  mean shapeworld 0.2500  2 s left",
        "run@base  60/60 rows  mean shapeworld 0.5000  0 s left",
    ]


def test_tables_escape_markup_in_names():
    table = ResultTable("T", ("subject", "value"), ((ResultCell("a|b <img>*"), ResultCell("+1", "up")),), note="Said.")
    assert as_markdown(table) == (
        "## T\n\nSaid.\n\n| subject | value |\n| --- | ---: |\n| a\\|b &lt;img&gt;\\* | **+1** |\n"
    )


def test_shared_folder_is_the_common_prefix_of_names():
    assert shared_folder(["runs/a/seed-0@base", "runs/a/seed-0", "runs/a/seed-1"]) == "runs/a/"
    assert shared_folder(["runs/a", "other/a"]) == "" == shared_folder(["a", "runs/a"])
    assert shared_folder(["/x/a", "/x/b"]) == "/x/"
