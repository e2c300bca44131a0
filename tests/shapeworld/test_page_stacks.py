"""Stacks of pages: searching, opening, looking closer and answering, each of which may fail or be done twice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrl.config import load_config
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import EpisodeBatch
from mmrl.errors import DataError
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import PIXELS, colours_of
from mmrl_shapeworld.vqa.questions import box_answer
from mmrl_shapeworld.worlds.page_environment import MAX_TURNS, PageStackEpisode, PageStacks
from mmrl_shapeworld.worlds.page_splits import NAMES, SIZES, careless, expert, stacks, tidy, trace
from mmrl_shapeworld.worlds.page_stacks import SHARING, SHEET, PageStack
from mmrl_shapeworld.worlds.world_canvas import UNSEEN_COLOURS, UNSEEN_SHAPES
from mmrl_shapeworld.worlds.zoom_environment import middle_of
from mmrl_shapeworld.worlds.zoom_pages import PAGE
from mmrl_shapeworld.worlds.zoom_splits import small_box

READER = MediaReader(MediaBudget())
STACK = stacks("pages-validation")[0]
QUERY, OPEN, LOOK, ANSWER = trace(STACK, expert)


def played(actions, stack=STACK, crop=True):
    episode = PageStackEpisode(stack, crop)
    steps = []
    for action in actions:
        steps.append(episode.step(action))
        if steps[-1].observation is None:
            break
    return episode.outcome(), steps


def test_an_expert_needs_four_turns():
    outcome, steps = played([QUERY, OPEN, LOOK, ANSWER])
    assert [step.rewards for step in steps] == [{"retrieval": 1.0}, {"selection": 1.0}, {"crop": 1.0}, {}]
    assert all(step.observation.images[0].size == (PIXELS, PIXELS) for step in steps[:3])
    assert outcome == {
        "answer": ANSWER,
        "success": True,
        "retrieval": 1.0,
        "recall": True,
        "selection": 1.0,
        "iou": 1.0,
        "hit": True,
        "redundant": 0.0,
        "calls": 3,
        "ended": "answer",
        "turn_rewards": {"match": [1.0, 1.0, 1.0, 1.0]},
    }


def test_the_pictures_are_the_sheet_the_page_and_the_cut():
    _, steps = played([QUERY, OPEN, LOOK])
    found = sorted(STACK.search(QUERY.split()))
    page = STACK.page(STACK.wanted)
    cut = page.picture().crop(middle_of(tuple(4 * each for each in small_box(page, 0)), (PAGE, PAGE)))
    expected = [
        colours_of(STACK.sheet(found)[0]),
        page.picture().resize((PIXELS, PIXELS), Image.Resampling.BICUBIC),
        cut.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC),
    ]
    for step, picture in zip(steps, expected, strict=True):
        assert np.array_equal(np.asarray(step.observation.images[0]), np.asarray(picture))


def test_a_query_of_both_words_finds_the_page_first_and_other_words_find_others():
    colour, shape = STACK.header
    assert STACK.search((colour, shape))[0] == STACK.wanted
    for stack in stacks("pages-validation")[:64]:
        assert sum(stack.header[0] == each[0] for each in stack.headers) == 1 + SHARING
        assert sum(stack.header[1] == each[1] for each in stack.headers) == 1 + SHARING
        assert len(stack.search(("page",))) == SHEET
    one_word = [stack.wanted in stack.search((stack.header[0],)) for stack in stacks("pages-validation")]
    assert abs(np.mean(one_word) - SHEET / (1 + SHARING)) < 0.08


def test_repetitions_and_calls_after_success_are_redundant_and_earn_nothing():
    outcome, steps = played([QUERY, QUERY, OPEN, OPEN, LOOK, LOOK, ANSWER])
    assert [step.info.get("redundant") for step in steps[:-1]] == [0, 1, 0, 1, 0, 1]
    assert [sum(step.rewards.values()) for step in steps] == [1, 0, 1, 0, 1, 0, 0]
    assert outcome["redundant"] == 0.5 and outcome["success"]
    assert outcome["turn_rewards"]["match"] == [1, 0, 1, 0, 1, 0, 1]


def test_a_later_better_call_is_matched_instead():
    shape = STACK.header[1]
    other = next(each for each in range(1, SHEET + 1) if str(each) != OPEN)
    outcome, _ = played([shape, QUERY, str(other), OPEN, LOOK, "Z"])
    assert outcome["turn_rewards"]["match"] == [0.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    assert outcome["selection"] == 0.5 and not outcome["success"]


def test_the_page_found_later_has_a_lower_ndcg():
    stack = next(each for each in stacks("pages-validation") if each.wanted not in each.search((each.header[0],)))
    outcome, steps = played([stack.header[0], " ".join(stack.header)], stack)
    rank = 1 + len({*stack.search((stack.header[0],))})
    assert steps[0].rewards == {"retrieval": 0.0} and steps[1].rewards == {"retrieval": 1.0}
    assert outcome["retrieval"] == pytest.approx(1 / math.log2(rank + 1)) and outcome["recall"]


def test_what_cannot_be_carried_out_is_answered_by_a_text():
    for actions in ([OPEN], [LOOK], [QUERY, "9"], [QUERY, LOOK]):
        outcome, steps = played(actions)
        assert steps[-1].observation.text and steps[-1].observation.images == ()
        assert outcome["turn_rewards"]["match"][-1] == 0.0
    outcome, steps = played([QUERY, OPEN, LOOK, ANSWER], crop=False)
    assert steps[2].observation.text and outcome["iou"] == 0 and not outcome["hit"]


@pytest.mark.parametrize(
    "action, answer", [("Z", "Z"), ("the blue circle", "the blue circle"), ("x" * 3000, None), (None, None)]
)
def test_any_other_text_is_the_answer(action, answer):
    outcome, steps = played([QUERY, action])
    assert steps[-1].observation is None and outcome["answer"] == answer and not outcome["success"]
    assert outcome["ended"] == ("cut_off" if action is None else "answer")


@given(
    actions=st.lists(
        st.sampled_from([QUERY, "circle", "2", "4", LOOK, box_answer((0, 0, 56, 56)), "", "7", "K"]), max_size=8
    )
)
def test_rewards_and_outcomes_stay_in_the_unit_interval(actions):
    outcome, steps = played(actions)
    for name in ("retrieval", "selection", "iou", "redundant"):
        assert 0 <= outcome[name] <= 1
    for name in ("retrieval", "selection", "crop"):
        assert sum(step.rewards.get(name, 0.0) for step in steps) <= 1
    assert len(outcome["turn_rewards"]["match"]) <= len(steps)


@pytest.mark.integration
def test_experts_and_annotators():
    rng = np.random.default_rng(0)
    chosen = stacks("pages-validation")[:256]
    best = [played(trace(stack, expert), stack)[0] for stack in chosen[:64]]
    assert all(each["success"] and each["redundant"] == 0 for each in best)
    steady = [played(trace(stack, tidy(rng)), stack)[0] for stack in chosen[:64]]
    assert np.mean([each["success"] for each in steady]) > 0.95
    found = [played(trace(stack, careless(rng)), stack)[0] for stack in chosen]
    assert 0.6 < np.mean([each["success"] for each in found]) < 0.85
    assert 0.1 < np.mean([each["redundant"] for each in found]) < 0.3


@pytest.mark.slow
def test_splits():
    seen = {}
    for name in NAMES:
        part = name.rpartition("-")[2]
        assert len(samples(name)) == SIZES[part]
        for sample, stack in zip(samples(name), stacks(name), strict=True):
            assert seen.setdefault(stack, name) == name
            assert PageStack.from_dict(sample.answer) == stack and sample.images == ()
            assert bool({*stack.header} & {*UNSEEN_COLOURS, *UNSEEN_SHAPES}) == (part == "ood")
            assert (sample.demonstration is not None) == (part == "train")
    assert max(len(sample.demonstration["turns"]) for sample in samples("pages-train")) <= MAX_TURNS


@pytest.mark.slow
def test_one_word_seldom_finds_a_page_of_a_tall_stack_and_both_always_do():
    """A search finds four pages: of the 16 with the word here, and of six in a usual stack."""
    found = {
        name: [stack.wanted in stack.search(stack.header[:1]) for stack in stacks(name)]
        for name in ("pages-validation", "pages-tall-validation")
    }
    assert np.mean(found["pages-validation"]) == pytest.approx(4 / 6, abs=0.07)
    assert np.mean(found["pages-tall-validation"]) == pytest.approx(4 / 16, abs=0.06)
    assert all(stack.wanted in stack.search(stack.header) for stack in stacks("pages-tall-validation"))


def test_a_batch_of_experts_reads():
    batch = EpisodeBatch(PageStacks(), samples("pages-validation")[:16], READER)
    for turn in range(4):
        batch.step({row: trace(stacks("pages-validation")[row], expert)[turn] for row in batch.live})
    assert batch.live == [] and all(each["success"] for each in batch.outcomes())


@pytest.mark.parametrize(
    "answer", [None, "A", {}, {"headers": [["red", "egg"]], "wanted": 0, "colour": "red", "seed": 1}]
)
def test_samples_of_other_kinds_are_named(answer):
    with pytest.raises(DataError, match="'other'"):
        PageStacks().begin(Sample("other", answer=answer), READER)


def test_the_recipe_names_what_there_is():
    config = load_config("shapes-pages", [])
    assert config.environment.name == "shapeworld_pages" and config.policy.model == "shapeworld:pages"
    weights = config.rewards[0].args["weights"]
    outcome, _ = played([QUERY, OPEN, LOOK, ANSWER])
    assert weights.keys() <= outcome.keys()
