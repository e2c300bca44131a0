"""Evaluating text policies: saved answers, prompt media, and rewards that only some samples request."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from mmrl.data import DataError, Sample
from mmrl.data.sample import RewardChoice
from mmrl.evaluation import Evaluation, EvaluationError, differing_pairs, evaluate
from mmrl.evaluation.image_grid import GAP, SIDE, first_of_each_source, side_by_side
from mmrl.evaluation.report.page import as_text, legible, one_line, shortened
from mmrl.evaluation.summary import summarise, summarise_run
from mmrl.rewards import RewardSuite
from tests.evaluation.evaluated_runs import ExactAnswer, WritePolicy, png, questions, routed, skills, write_run


def run(policy, samples, **changes):
    return evaluate(policy, samples, routed(samples), **({"draws": 1, "batch": 32, "seed": 7} | changes))


# what is kept


def test_answers_are_saved_with_prompt_image_and_reference(tmp_path):
    samples = questions(12)
    found = run(WritePolicy(skills(1.0, 0.0, 1.0)), samples, step=3, pictures=3)
    found.save(tmp_path, pictures=3)
    for result in (found, Evaluation.load(tmp_path, 3)):
        assert [result.answer(n) for n in range(6)] == ["0", "1", "2", "seven", "seven", "5"]
        assert list(result.tokens[:4]) == [1, 1, 1, 5] and result.has_answers
        assert list(result.expected[:3]) == ["0", "1", "2"] and set(result.images) == {None}
        assert [n for n, image in enumerate(result.prompt_images) if image is not None] == [0, 5], (
            "the first of each source"
        )
        assert result.prompt_images[0].getpixel((0, 0)) == (255, 0, 0) and result.prompt_images[0].size == (8, 6)
        assert result.prompt_images[5].getpixel((0, 0)) == (0, 255, 0), "the middle frame"
        assert result.mean_tokens == pytest.approx((8 * 1 + 4 * 5) / 12)
    assert sorted(path.name for path in tmp_path.rglob("*.png")) == ["0000-shown.png", "0005-shown.png"]
    assert Evaluation.load(tmp_path, 3, images=False).prompt_images == [None] * 12


def test_prompt_images_are_not_read_if_none_are_requested(tmp_path):
    lost = Sample(id="q0", prompt="x", source="counting", answer=1, images=(str(tmp_path / "gone.png"),))
    suite = RewardSuite([(ExactAnswer(), 1.0)])
    found = evaluate(WritePolicy(skills(1, 1, 1)), [lost], suite, draws=1, batch=1, seed=0, pictures=0)
    assert list(found.prompt_images) == [None]
    with pytest.raises(DataError, match=r"gone\.png: there is no such file \(sample 'q0'\)"):
        evaluate(WritePolicy(skills(1, 1, 1)), [lost], suite, draws=1, batch=1, seed=0, pictures=1)
    suite.close()


def test_answers_with_special_characters_survive_a_round_trip(tmp_path):
    nasty = 'a\u2028b\n"c" \\ </script>\x00'
    samples = [Sample(id="q0", prompt="half \ud800", source="maths", answer={"x": [1, "ü"]})]
    suite = RewardSuite([(ExactAnswer(), 1.0)])
    found = evaluate(WritePolicy(skills(0, 0, 0), wrong=nasty), samples, suite, draws=2, batch=4, seed=0)
    suite.close()
    found.save(tmp_path)
    loaded = Evaluation.load(tmp_path, 0)
    assert loaded.answers == [nasty, nasty] and loaded.prompts == ("half \ud800",)
    assert loaded.expected == ['{"x": [1, "ü"]}'] and loaded.diversity == 0.0


def test_evaluations_without_answers_still_load(tmp_path):
    found = run(WritePolicy(skills(1.0, 0.0, 1.0)), questions(6))
    path = found.save(tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: row[k] for k in row if k in OLD}) + "\n" for row in rows))
    loaded = Evaluation.load(tmp_path, 0)
    assert not loaded.has_answers and loaded.mean_tokens is None and loaded.answer(0) is None
    np.testing.assert_array_equal(loaded.values["total"], found.values["total"])
    path.write_text(json.dumps(rows[0] | {"answer": 5}) + "\n")
    with pytest.raises(EvaluationError, match=r"step-0\.jsonl:1: differs"):
        Evaluation.load(tmp_path, 0)


OLD = {"id", "draw", "prompt", "source", "rewards", "status"}


def test_last_request_is_the_prompt_of_a_conversation():
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "how many?"})
    sample = Sample(id="q0", messages=messages, source="maths", answer=1, rewards=(RewardChoice("near"),))
    assert run(WritePolicy(skills(1, 1, 1)), [sample]).prompts == ("how many?",)


# rewards that were not requested


def test_rewards_not_requested_by_a_sample_are_absent():
    samples = questions(12)
    found = run(WritePolicy(skills(1.0, 0.0, 0.0)), samples)
    assert np.isnan(found.values["near"]).sum() == 8 and found.failed("near") == 0
    assert found.counts == {
        "exact": {"ok": 6, "invalid": 2},
        "near": {"ok": 4},
        "near_digits": {"ok": 4},
        "brief": {"ok": 12},
        "total": {"ok": 10, "invalid": 2},
    }
    assert found.requested("near").tolist() == [sample.source == "maths" for sample in samples]
    by_source = found.by_source()
    assert {source: set(means) for source, means in by_source.items()} == {
        "clips": {"exact", "brief", "total"},
        "counting": {"exact", "brief", "total"},
        "maths": {"near", "near_digits", "brief", "total"},
    }
    metrics = found.metrics()
    assert metrics["evaluation/exact"] == 6 / 8 and metrics["evaluation_by_source/counting"] == 1.0
    assert metrics["evaluation_by_source/maths"] == pytest.approx(2 * found.mean("near"))
    assert metrics["evaluation_tokens_by_source/clips"] == 5
    assert not any(name.startswith("evaluation_failed") for name in metrics)


def test_failed_scorers_are_counted_for_requesting_samples():
    samples = questions(6)
    samples[0] = Sample(**{**vars(samples[0]), "prompt": "unscorable"})
    found = run(WritePolicy(skills(1.0, 1.0, 1.0)), samples)
    assert found.failed("exact") == 1 and found.counts["exact"] == {"ok": 3, "error": 1}
    assert found.metrics()["evaluation_failed/exact"] == 1 and "evaluation_failed/near" not in found.metrics()


def test_differences_use_samples_that_request_the_reward(tmp_path):
    folder = write_run(tmp_path / "run", skills(0.3, 0.3, 0.9), skills(0.8, 0.6, 0.1))
    summary = summarise_run(folder)
    first, last = (Evaluation.load(folder, step, images=False) for step in (0, 4))
    rows = np.array(first.sources) == "maths"
    truth = stats.ttest_rel(last.values["near"][rows].astype(float), first.values["near"][rows].astype(float))
    near, interval = summary.changes["near"].difference, truth.confidence_interval()
    assert (near.n, near.dropped) == (40, 0)
    assert (near.low, near.high) == pytest.approx((interval.low, interval.high))
    assert summary.by_source["maths"]["near"] == summary.changes["near"] and "near" not in summary.by_source["clips"]
    assert summary.changes["exact"].difference.n == 80 and first.further == ("near_digits",)
    assert list(summary.changes) == ["total", "exact", "near", "near_digits", "brief"]
    assert summary.headline == "total" and summary.sources_with("down") == ["clips"]
    assert summary.changes["exact"].malformed == tuple(e.counts["exact"]["invalid"] for e in (first, last))
    assert summary.tokens == (first.mean_tokens, last.mean_tokens)
    assert summarise([folder]).over_runs["near"].mean == pytest.approx(near.mean)


# diversity


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=9))
def test_text_diversity_is_the_share_of_distinct_pairs(texts):
    pairs = list(combinations(texts, 2))
    assert differing_pairs(texts) == pytest.approx(sum(a != b for a, b in pairs) / len(pairs))


def test_text_diversity_needs_two_draws():
    with pytest.raises(EvaluationError, match="not 1"):
        differing_pairs(["a"])
    found = run(WritePolicy(skills(0.5, 0.5, 0.5)), questions(6), draws=8, batch=48)
    by_hand = [differing_pairs(found.answers[n * 8 : n * 8 + 8]) for n in range(6)]
    assert found.diversity == pytest.approx(np.mean(by_hand)) and 0 < found.diversity < 1
    assert run(WritePolicy(skills(1.0, 1.0, 1.0)), questions(6), draws=4).metrics()["evaluation/diversity"] == 0


# what is shown


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.integers(0, 12))
def test_first_of_each_source_takes_equal_numbers(sources, count):
    chosen = first_of_each_source(sources, count)
    assert chosen == sorted(set(chosen)) and (count > 0 or not chosen)
    if count:
        each = max(1, count // max(1, len(set(sources))))
        for source in set(sources):
            places = [n for n, other in enumerate(sources) if other == source]
            assert [n for n in chosen if sources[n] == source] == places[:each]


def test_several_images_are_tiled_and_resized():
    row = side_by_side([Image.new("RGB", (10, 20), "red"), Image.new("L", (30, 10), 0)])
    assert row.size == (10 + GAP + 30, 20)
    colours = [row.getpixel(place) for place in ((9, 19), (10, 0), (14, 9), (14, 10))]
    assert colours == [(255, 0, 0), (255, 255, 255), (0, 0, 0), (255, 255, 255)]
    huge = side_by_side([Image.new("RGB", (40_000, 1)), Image.new("RGB", (1, 3000))])
    assert max(huge.size) <= SIDE
    samples = [Sample(id="q0", prompt="x", source="maths", answer=1, images=(png("red"),) * 6)]
    suite = RewardSuite([(ExactAnswer(), 1.0)])
    output = evaluate(WritePolicy(skills(1, 1, 1)), samples, suite, draws=1, batch=1, seed=0).prompt_images[0]
    suite.close()
    assert output.size == (4 * 8 + 3 * GAP, 6), "the first four"


@given(st.text(max_size=80), st.integers(8, 40))
def test_displayed_texts_are_truncated_and_escape_control_characters(text, most):
    short = shortened(text, most)
    assert len(short) <= most and "\x1b" not in short and "\u202e" not in short
    assert short.encode("utf-8").decode("utf-8") == short, "no half letters"
    assert "\n" not in one_line(text, most)
    if len(legible(text).strip()) <= most:
        assert short == legible(text).strip()


def test_truncated_texts_keep_their_beginning_and_end():
    text = "<think>" + "so " * 500 + "</think><answer>42</answer>"
    short = shortened(text, 60)
    assert short.startswith("<think>so so") and short.endswith("<answer>42</answer>") and " … " in short
    assert legible("a\x1b[31mb\r\nc\td\u202e") == "a\ufffd[31mb\nc\td\ufffd"
    assert as_text(None, 9) is None and as_text({"box": [1, 2]}, 40) == '{"box": [1, 2]}' and as_text("ü", 9) == "ü"
    assert len(as_text(object(), 40)) <= 40, "what is no JSON"
