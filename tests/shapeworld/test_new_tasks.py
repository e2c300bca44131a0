"""Tasks that the shipped VLM was not pretrained on: questions are checked by their pixels, and scored by task."""

from __future__ import annotations

import io
import json
from collections import Counter

import av
import numpy as np
import pytest
from scipy import ndimage
from transformers import Qwen3VLProcessor

from mmrl.config import load_config
from mmrl.data.jsonl import write_samples
from mmrl.data.media.uris import uri_bytes
from mmrl.rewards import load
from mmrl.rewards.core.reward_io import reward_input
from mmrl.rewards.parsing.tables import parse_table
from mmrl.understanding.tasks.definitions import BUILT_IN_TASKS
from mmrl.workflows.train import train
from mmrl_shapeworld import splits as all_splits
from mmrl_shapeworld.shipped_models import VLM
from mmrl_shapeworld.vqa import heldout_tasks, question_splits
from mmrl_shapeworld.vqa.canvas import FRAMES_PER_SECOND, INK, LINE, NUMBERS, PIXELS, colours_of, gif_uri
from mmrl_shapeworld.vqa.glyphs import GLYPHS
from mmrl_shapeworld.vqa.heldout_tasks import NEW_TASKS, SIDES
from mmrl_shapeworld.vqa.question_splits import NEW_SPLITS, REWARDS, as_sample
from mmrl_shapeworld.vqa.questions import FRAMES, SCALE


@pytest.fixture(scope="module")
def question_sets():
    """100 questions of each task, of no split."""
    return {task: [ask(np.random.default_rng((7, n))) for n in range(100)] for task, ask in NEW_TASKS.items()}


def score(task, questions, texts):
    """Return the scores of texts by the reward of their task; NaN for malformed texts."""
    choice = REWARDS[task]
    samples = [as_sample(task, question, str(n)) for n, question in enumerate(questions)]
    items = [reward_input(s, text, n, str(n)) for n, (s, text) in enumerate(zip(samples, texts, strict=True))]
    out = load(choice.name, **choice.args).score(items)
    status = out.status[choice.name]
    assert set(status) <= {"ok", "invalid"}, out.failures
    return np.where([each == "ok" for each in status], np.asarray(out.values[choice.name]), np.nan)


@pytest.mark.parametrize("task", NEW_TASKS)
def test_right_answers_score_one_and_others_less(question_sets, task):
    questions = question_sets[task]
    rights = [question.right for question in questions]
    assert (score(task, questions, rights) == 1).all()
    other = score(task, questions, [*rights[1:], rights[0]])
    differ = [a != b for a, b in zip(rights, [*rights[1:], rights[0]], strict=True)]
    assert np.isfinite(other).all() and other[differ].mean() < 0.7
    if task != "gui":  # where another place may lie in the same button
        assert (other[differ] < 1).all()
    assert np.isnan(score(task, questions[:1], ["I see nothing in here."])).all()


@pytest.mark.parametrize("task", NEW_TASKS)
def test_annotated_answers_are_well_formed_and_often_wrong(question_sets, task):
    """They are what is imitated: a reward must find something to correct, and every answer can be read."""
    scores = score(task, question_sets[task], [question.annotated for question in question_sets[task]])
    assert 0.5 < scores.mean() < 0.9


@pytest.mark.parametrize("task", NEW_TASKS)
def test_rewards_are_those_of_the_tasks(question_sets, task):
    for question in question_sets[task][:10]:
        assert BUILT_IN_TASKS[task].answer_of(as_sample(task, question, "0")).reward.name == REWARDS[task].name


def test_buttons_hold_the_named_thing_alone(question_sets):
    for question in question_sets["gui"]:
        picture, (x1, y1, x2, y2) = question.frames[0], question.answer["box"]
        colour = question.prompt.split()[2]
        button = picture[y1:y2, x1:x2]
        assert set(np.unique(button)) == {LINE, NUMBERS[colour]}
        assert all((edge == LINE).all() for edge in (button[0], button[-1], button[:, 0], button[:, -1]))
        around = picture[max(y1 - 1, 0) : y2 + 1, max(x1 - 1, 0) : x2 + 1] > 0
        assert around.sum() == button.size  # buttons are apart, also from the bar


def test_clicks_beside_the_button_earn_the_action_only(question_sets):
    questions = question_sets["gui"]
    beside = [heldout_tasks.click(q.answer["box"][2] + 1, q.answer["box"][3]) for q in questions]
    assert (score("gui", questions, beside) == 0.5).all()
    assert (score("gui", questions, ["scroll('down')"] * len(questions)) == 0).all()


def test_beams_tip_by_the_moments_of_their_weights(question_sets):
    """Every pixel of a weight, times its distance from the beam's middle."""
    for question in question_sets["science"]:
        picture = question.frames[0]
        middle = np.nonzero(picture == INK)[1].mean()
        weights = np.nonzero((picture > 0) & (picture < INK))[1]
        moment = (weights - middle).sum()
        side = SIDES[2] if abs(moment) < 1e-6 else SIDES[int(moment > 0)]
        assert question.metadata["choices"]["ABC".index(question.answer)] == side
    assert {question.answer for question in question_sets["science"]} == set("ABC")


def test_moments_are_the_frames_with_two_things(question_sets):
    for question in question_sets["temporal-grounding"]:
        things = [ndimage.label(frame, structure=np.ones((3, 3)))[1] for frame in question.frames]
        visible = [number for number, count in enumerate(things) if count == 2]
        assert set(things) <= {1, 2} and len(question.frames) == FRAMES
        assert visible == list(range(visible[0], visible[-1] + 1))
        assert question.answer == [visible[0] / FRAMES_PER_SECOND, (visible[-1] + 1) / FRAMES_PER_SECOND]


def test_clips_round_trip_through_uris(question_sets):
    for question in question_sets["temporal-grounding"][:20]:
        with av.open(io.BytesIO(uri_bytes(gif_uri(question.frames)))) as container:
            decoded = list(container.decode(video=0))
        assert [frame.time for frame in decoded] == [n / FRAMES_PER_SECOND for n in range(FRAMES)]
        for frame, expected in zip(decoded, question.frames, strict=True):
            assert np.array_equal(frame.to_ndarray(format="rgb24"), colours_of(expected))


def test_cells_are_legible_from_pixels(question_sets):
    letters = {dots.tobytes(): letter for letter, dots in GLYPHS.items()}
    cell = PIXELS // 2
    for question in question_sets["table2latex"]:
        picture = question.frames[0]
        top, left = (int(at.min()) for at in np.nonzero(picture))
        read = []
        for row in parse_table(question.answer).sections[0].rows:
            found = []
            for number in range(len(row)):
                y, x = top + cell * len(read), left + cell * number
                here = picture[y : y + cell, x : x + cell]
                ink = (here > 0) & (here != LINE)
                rows, columns = np.nonzero(ink)
                dots = ink[rows.min() : rows.max() + 1 : SCALE, columns.min() : columns.max() + 1 : SCALE]
                found.append(letters[dots.tobytes()])
            read.append(found)
        assert heldout_tasks.tabular(read) == question.answer


def test_shipped_model_can_express_every_answer_in_48_tokens(question_sets):
    words = Qwen3VLProcessor.from_pretrained(VLM).tokenizer
    texts = [
        text for questions in question_sets.values() for q in questions for text in (q.prompt, q.right, q.annotated)
    ]
    ids = words(texts).input_ids
    assert words.batch_decode(ids) == texts
    assert max(map(len, ids)) < 48


@pytest.mark.integration
def test_splits_have_the_stated_sizes_and_no_common_image():
    seen: set[bytes] = set()
    for split, size in NEW_SPLITS.items():
        drawn = question_splits.questions(split)
        assert {task: len(rows) for task, rows in drawn.items()} == dict.fromkeys(NEW_TASKS, size)
        seen |= {task.encode() + b"".join(f.tobytes() for f in q.frames) for task, rows in drawn.items() for q in rows}
    assert len(seen) == len(NEW_TASKS) * sum(NEW_SPLITS.values())


def test_splits_are_deterministic_and_alternate_tasks():
    rows = all_splits.samples("vlm-new-development")
    assert [row.source for row in rows[:8]] == list(NEW_TASKS) * 2
    assert len({row.id for row in rows}) == len(rows) == 4 * NEW_SPLITS["vlm-new-development"]
    assert all(row.demonstration is None and len(row.rewards) == 1 for row in rows)
    rng = np.random.default_rng((question_splits.NEW_SEED, 0))
    again = [NEW_TASKS["gui"](rng) for _ in range(5)]  # drawn anew and not from the cache
    assert [q.right for q in question_splits.questions("vlm-new-train")["gui"][:5]] == [q.right for q in again]
    with pytest.raises(KeyError, match="vlm-new-train or vlm-new-development or vlm-new-validation"):
        all_splits.samples("vlm-new-test")


def test_demonstrations_of_new_tasks_are_annotated_answers(question_sets):
    question = question_sets["gui"][0]
    assert as_sample("gui", question, "0", demonstrated=True).demonstration == question.annotated != question.right
    assert Counter(type(q.answer) for q in question_sets["temporal-grounding"]) == {list: 100}


@pytest.mark.integration
def test_recipe_trains_on_demonstrations_then_grpo(question_sets, tmp_path):
    samples = [
        as_sample(task, question, f"{task}-{n}", demonstrated=True)
        for task, questions in question_sets.items()
        for n, question in enumerate(questions[:2])
    ]
    write_samples(samples, tmp_path / "data.jsonl")
    short = ("data.groups=8", "data.group_size=2", "pretraining.iterations=1", "training.iterations=2")
    data = (f"data.path={tmp_path}/data.jsonl", "data.validation=null", "evaluation={}")
    config = load_config("shapes-new-tasks", [*short, *data, f"run.dir={tmp_path}/run", "run.display=quiet"])
    run = train(config)
    first, second = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert (first["stage"], second["stage"]) == (0.0, 1.0)
    assert max(first["replay_gap"], second["replay_gap"]) < 1e-4
    for task in NEW_TASKS:
        assert first[f"length_by_source/{task}"] > 0 and 0 <= second[f"reward_by_source/{task}"] <= 1


def test_evaluation_after_the_warm_up_separates_both_stages():
    config = load_config("shapes-new-tasks", [])
    assert config.pretraining.iterations == config.evaluation.every < config.training.iterations
    assert config.evaluation.prompts == len(NEW_TASKS) * NEW_SPLITS["vlm-new-validation"]
