"""The order of the report: the largest changes first, the step of divergence, the time per phase."""

import json
import re

import numpy as np

from mmrl.evaluation import write_report
from mmrl.evaluation.report.run_charts import curves_svg, phases, time_table
from mmrl.evaluation.report.run_report import MOST, by_change, count_changes
from mmrl.evaluation.results import Evaluation
from mmrl.evaluation.run_reader import read_run
from mmrl.evaluation.run_warnings import divergence_step
from tests.evaluation.evaluated_runs import skills, write_run
from tests.evaluation.test_report import Page


def pair(changes, draws=1):
    """Evaluations before and after, whose prompts moved by these changes."""

    def make(step, values):
        ids = tuple(f"p{n}" for n in range(len(values) // draws))
        status = {"good": ["ok"] * len(values)}
        column = {"good": np.array(values, np.float32)}
        return Evaluation(step, draws, ids, ids, ("one",) * len(ids), column, status, [None] * len(values))

    return make(0, [0.5] * len(changes)), make(9, [0.5 + change for change in changes])


def test_report_lists_largest_changes_first_without_duplicates():
    changes = [0.1, -0.3, 0.0, 0.4, np.nan, -0.1, 0.2, 0.3, 0.05, -0.2]
    order = by_change(*pair(changes), "good", range(10))
    assert order.rose == [3, 7, 6, 0] and len(order.rose) == MOST
    assert order.fell == [1, 9, 5] and order.others == [8, 2, 4]
    assert count_changes(*pair(changes), "good") == (5, 1, 3)
    only = by_change(*pair(changes), "good", [1, 2])
    assert (only.rose, only.fell, only.others) == ([], [1], [2])


def test_prompts_with_several_draws_are_ordered_by_the_first():
    changes = [0.2, -0.5, -0.1, 0.4]  # two prompts, two draws each
    order = by_change(*pair(changes, draws=2), "good", [0, 1])
    assert order.rose == [0] and order.fell == [1]
    assert count_changes(*pair(changes, draws=2), "good") == (1, 0, 1)  # by their means


def test_cards_are_ordered_by_change_under_headings(make_run):
    run = make_run(rise=0.0)
    html = write_report(run).read_text()
    pictures = html[html.index("<h2>Pictures") : html.index("<h2>Rewards")]
    assert pictures.index("Rose most") < pictures.index("Fell most")
    output = re.findall(r"<td>redness</td><td>[\d.]+</td><td>[\d.]+</td><td class=\"\w+\">([+-][\d.]+)</td>", pictures)
    rises = [float(change) for change in output if float(change) > 0]
    falls = [float(change) for change in output if float(change) < 0]
    assert len(output) == 4 and rises == sorted(rises, reverse=True) and falls == sorted(falls) and rises and falls
    text = Page(html).text
    rose, stayed, fell = map(int, re.search(r"Of all 40: (\d+) rose, (\d+) stayed, (\d+) fell", text).groups())
    assert rose + stayed + fell == 40 and fell > 5


def test_answers_are_ordered_and_images_open_without_scripts(tmp_path):
    run = write_run(tmp_path / "run", skills(0.2, 0.5, 0.5), skills(0.9, 0.4, 0.6))
    html = write_report(run).read_text()
    page = Page(html)
    assert "By change in total, of 6 prompts" in page.text and "script" not in page.tags
    zooms, pictures = html.count('<input type="checkbox" aria-label="larger">'), page.tags.count("img")
    assert zooms == pictures > 0  # one picture was shown with each question that has one
    assert ".zoom input:checked" in html and "prefers-color-scheme: dark" in html


def test_divergence_step_is_marked(make_run):
    hacked, honest = make_run("hacked", heldout=-0.3), make_run("honest", heldout=0.3)
    assert divergence_step(read_run(hacked)) == 10 and divergence_step(read_run(honest)) is None
    html = write_report(hacked).read_text()
    assert "They diverged at step 10" in html and html.count('class="flag"') == 1
    html = write_report(honest).read_text()
    assert "They did not diverge" in html and 'class="flag"' not in html
    with (honest / "metrics.jsonl").open("a") as file:  # what the run said as it went is what counts
        for step, diverged_flag in ((4, 0.0), (8, 1.0), (10, 1.0)):
            file.write(json.dumps({"kind": "evaluation", "step": step, "evaluation_parted": diverged_flag}) + "\n")
    assert divergence_step(read_run(honest)) == 8


def test_time_table_lists_phases(make_run):
    record = read_run(make_run())
    assert {name: sum(seconds) for name, seconds in phases(record).items()} == {"rollout": 15.0, "update": 25.0}
    text = Page(time_table(record)).text
    assert "update2.50 s25.0 s62%" in text and "rollout1.50 s15.0 s38%" in text and "all phases40.0 s" in text


def test_facts_include_replay_gap_and_idle_groups(make_run):
    run = make_run()
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "step": 11, "replay_gap": 3e-7, "zero_variance_share": 0.25}) + "\n")
    text = Page(write_report(run).read_text()).text
    assert "Largest replay gap3e-07" in text and "Groups without variance25%" in text


def test_curves_are_a_separate_file_up_to_a_step(make_run):
    run = make_run(steps=(0, 5, 10))
    whole, half = curves_svg(read_run(run)), curves_svg(read_run(run, until=5))
    assert whole.startswith('<svg xmlns="http://www.w3.org/2000/svg"') and "held (held out)" in whole
    assert "step 10" in whole and "step 10" not in half and "step 5" in half
