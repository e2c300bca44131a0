"""The page about a policy that writes: answers side by side, curves and verdicts by source, greedy beside drawn."""

import io
import re
import shutil

import pytest
from rich.console import Console

from mmrl.evaluation import render, summarise, write_report
from mmrl.evaluation.final_summary import final_summary, split_tables, write_grid
from tests.evaluation.evaluated_runs import questions, skills, write_run
from tests.evaluation.test_report import Page

NASTY = "<script>alert('x')</script>\x1b[2J\u202e seven"


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """Counting and maths rise and clips fall; greedily, counting falls."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    greedy = (skills(0.8, 0.5, 0.5), skills(0.2, 0.5, 0.5))
    write_run(folder, skills(0.3, 0.3, 0.9), skills(0.9, 0.9, 0.1), greedy, wrong=NASTY)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def html(answered):
    return (answered / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def printed(*renderables, width=130):
    console = Console(width=width, file=io.StringIO())
    console.print(*renderables)
    return console.file.getvalue()


def test_report_has_cards_by_source_with_image_question_and_answers(page, html):
    assert "Answers" in page.text and "Pictures" not in page.text
    for text in ("counting question 0?", "maths question 3?", "clips question 5?", "step 0", "step 4", "right"):
        assert text in page.text
    assert len(page.addresses) == 2 * 4, "two of counting and two of clips, in both sets; maths is text alone"
    cards = re.findall(r'<figure class="card">.*?</figure>', html)
    assert len(cards) == 2 * 6
    maths = next(card for card in cards if "maths question 3?" in card)
    assert ">near<" in maths and ">brief<" in maths and ">exact<" not in maths and "<img" not in maths
    assert any("step 0, malformed" in card for card in cards if "counting" in card)


def test_report_escapes_answers_and_bidirectional_marks(page, html):
    assert "<script" not in html and "script" not in page.tags and "\x1b" not in html and "\u202e" not in html
    assert "<script>alert('x')</script>\ufffd[2J\ufffd seven" in page.text, "it is there, as text"


def test_report_has_curves_and_verdicts_by_source(page, html):
    charts = html[html.index("<h2>By source</h2>") :]
    for source in ("clips", "counting", "maths"):
        assert f'aria-label="{source}"' in charts
    for title in ("Length of answers by source", "Valid share by source", "Groups without variance by source"):
        assert f'aria-label="{title}"' in charts
    assert 'aria-label="Entropy"' in html and 'aria-label="Length of answers"' in html
    assert "evaluation greedily" in charts, "in the legend"
    assert "total by source: 2 up, 0 unsure, down: clips." in page.text
    assert "length in tokens" in page.text and "malformed" in page.text
    assert "exact, near" in page.text, "the head names the rewards that samples request"


def test_report_warns_of_rewards_that_rise_sampled_but_fall_greedily(page, answered, tmp_path):
    warned = re.sub(r"[-+]?\d+\.\d+", "N", page.text)
    assert "total rose at temperature 1, but greedily it fell by N (95 % interval N to N)." in warned
    assert "exact rose at temperature 1, but greedily it fell by N" in warned
    assert "total rose, but on clips it fell by N" in warned
    assert "Greedily, on counting, total fell by N" in warned
    assert "failed on" not in warned, "a reward that is not requested is no failure"
    control = write_run(tmp_path / "run", skills(0.2, 0.2, 0.2), skills(0.9, 0.9, 0.9), samples=questions(60))
    assert "fell by" not in Page(write_report(control).read_text(encoding="utf-8")).text


def test_report_has_tables_of_sampled_and_greedy_answers(page, answered):
    assert "Before and after" in page.text and "Before and after, greedy" in page.text
    tables = printed(*split_tables([answered], by_source=True))
    assert "answered greedily" in tables and "By source" in tables and "run/greedy" in tables
    assert "total by source: 0 up, 2 unsure, down: counting." in tables
    assert "By source" not in printed(*split_tables([answered], by_source=False))


def test_final_summary_prints_some_answers(answered):
    assert write_grid(answered, 12) is None, "there is no picture before and after"
    text = printed(final_summary(answered, colours=True, width=100), width=100)
    lines = text.splitlines()
    start = lines.index("counting question 0?")
    assert lines[start + 1].split() == ["right", "0"]
    assert lines[start + 2].split()[:2] in (["before", "0.00"], ["before", "1.00"])
    assert lines[start + 3].split()[:2] in (["after", "0.00"], ["after", "1.00"])
    assert "\x1b[2J" not in text and "\u202e" not in text and "[2J" in text
    assert max(map(len, lines[: lines.index("maths question 3?")])) <= 100
    assert "total by source: 2 up, 0 unsure, down: clips." in text and "answered greedily" in text


def test_summary_states_significant_falls_by_task(answered, tmp_path):
    better = write_run(tmp_path / "better", skills(0.2, 0.2, 0.2), skills(0.9, 0.9, 0.9))
    tables = printed(*render(summarise([answered, better])))
    verdicts = tables[tables.index("Verdicts by source") :]
    clips = next(line for line in verdicts.splitlines() if "clips" in line)
    assert [cell.strip() for cell in clips.strip("│┃ ").split("│")][-3:] == ["1", "0", "1"]
    assert "down: clips (run)." in verdicts
    good = printed(*render(summarise([better, shutil.copytree(better, tmp_path / "again")])))
    assert "total by source: 6 up, 0 unsure, none down." in good


def test_report_of_unfinished_runs_has_the_first_answers(answered, tmp_path):
    folder = shutil.copytree(answered, tmp_path / "run")
    for inner in (folder, folder / "greedy"):
        (inner / "evaluations" / "step-4.jsonl").unlink()
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "Before and after" not in page.text and "counting question 0?" in page.text and len(page.addresses) == 8
