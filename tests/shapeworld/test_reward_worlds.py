"""Worlds for studies of rewards: their labels are true, and their scorers see what they are to see."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.rewards import InvalidAnswer, RewardInput, Status
from mmrl_shapeworld import driving_clips, step_demonstrations, web_pages
from mmrl_shapeworld.anchored_pictures import anchored_pictures
from mmrl_shapeworld.web_page_runs import page_policy
from mmrl_shapeworld.web_pages import PageContents, PageLook, PageStructure, parse_strictly, render, write_page
from mmrl_shapeworld.worlds import caption_groups, described_things


@pytest.mark.integration
def test_chosen_actions_are_right_in_half_of_the_pictures_and_among_their_anchors():
    answers = anchored_pictures(900)
    assert answers.truth.mean() == 0.5 and len(set(answers.ids)) == len(answers.ids) == 120
    for item in answers.inputs:
        anchors = item.references["anchors"]
        assert item.prompt in anchors and len(set(anchors)) == len(anchors) > 1
        assert len({anchor.split()[2] for anchor in anchors}) == 1  # the same pair of things in all
    assert anchored_pictures(901).inputs[0].prompt != answers.inputs[0].prompt


@pytest.mark.integration
def test_clips_are_labelled_by_what_their_scorers_look_for():
    answers = driving_clips.driving_clips(900)
    judge = driving_clips.ApproachRisk()
    risk = judge.score(answers.inputs).values["risk"]
    assert judge.calls == len(answers.inputs) and set(answers.truth) == {-1.0, 0.0, 1.0}
    assert (risk[answers.truth == -1] == 1).all() and (risk[answers.truth == 1] == 0).all()
    found = driving_clips.PersonDetector().score(answers.inputs).values["person"] >= driving_clips.DETECTED
    assert 0.9 < found[risk == 1].mean() <= 1 and 0.15 < found.mean() < 0.35


@pytest.mark.integration
def test_a_gated_judge_is_called_for_clips_with_a_detected_person():
    gated, ungated = (driving_clips.driving_rewards(901, judged) for judged in ("detected", "all"))
    assert 0.1 < gated["calls"][0] < 0.4 and ungated["calls"] == [1.0]


PAGE = "<page><p>A</p><card><p>B</p></card><grid><card><p>C</p></card></grid></page>"


def test_well_formed_pages_are_parsed():
    page = parse_strictly(PAGE)
    assert [child.tag for child in page.children] == ["p", "card", "grid"]
    assert page.children[2].children[0].children[0].text == "C"


@pytest.mark.parametrize(
    "markup",
    ["", "A", PAGE[:-7], PAGE.replace("</card>", "", 1), PAGE + PAGE, "<page><b></page>", "<page>A</page>",
     "<p>A</p>", "<page><p><card></card></p></page>", PAGE.replace("</grid>", "</card>")],
)  # fmt: skip
def test_malformed_pages_are_refused_and_still_rendered(markup):
    with pytest.raises(InvalidAnswer):
        parse_strictly(markup)
    render(markup)
    output = PageStructure().score([RewardInput("0", 0, "", text=markup)])
    assert output.status["structure"] == [Status.INVALID] and output.values["structure"][0] == 0


def test_the_look_of_a_page_does_not_depend_on_a_tag_left_open_at_its_end():
    look = PageLook()
    items = [
        RewardInput("0", 0, "", text=text) for text in (PAGE, PAGE.replace("</grid>", ""), "<page><p>A</p></page>")
    ]
    whole, broken, plain = look.score(items).values["look"].tolist()
    assert whole == broken > plain == 0 and look.calls == 3


def test_contents_are_the_letters_that_a_page_shows():
    item = RewardInput("0", 0, "", text=PAGE, references={"letters": ["A", "B", "X", "C"]})
    assert PageContents().score([item]).values["contents"][0] == 0.75


def test_richer_pages_are_more_often_malformed():
    def valid(style: str) -> float:
        rng = np.random.default_rng(0)
        items = [RewardInput("0", 0, "", text=write_page("ABCDEF", [style] * 6, rng)) for _ in range(200)]
        return float(PageStructure().score(items).values["structure"].mean())

    assert valid("plain") == 1 > valid("card") > valid("grid") > 0.2
    assert valid("card") == pytest.approx((1 - web_pages.FORGETS) ** 6, abs=0.1)


@pytest.mark.integration
def test_the_judge_of_a_cascade_sees_well_formed_pages_alone():
    cascade, everything = (page_policy(900, combine, iterations=2) for combine in ("cascade", "sum"))
    assert cascade["calls"][0] < everything["calls"][0] == 1
    assert len(cascade["valid"]) == len(cascade["look"]) == 400 and set(cascade["valid"]) == {0.0, 1.0}


@pytest.mark.integration
def test_groups_of_captions_differ_in_their_facts_and_bunch_in_their_similarity():
    inputs, truth = caption_groups.caption_groups(900)
    assert len({item.group for item in inputs}) == caption_groups.GROUPS and truth.std() > 0.1
    scores = caption_groups.BunchedSimilarity().score(inputs).values["bunched_similarity"]
    assert (scores >= np.float32(0.9)).all() and (scores <= np.float32(0.95)).all() and scores.std() > 0.002


@pytest.mark.integration
def test_spread_similarities_change_the_ranking_that_squeezed_ones_cannot():
    adaptive, raw, none = (
        caption_groups.semantic_totals(901, kind)["ranking"][0] for kind in ("adaptive", "raw", "none")
    )
    assert abs(raw - none) < abs(adaptive - none)


@pytest.mark.integration
def test_descriptions_are_right_in_half_and_the_judge_is_fallible():
    answers = described_things.described_things(900)
    assert answers.truth.mean() == 0.5
    judge = described_things.YesNoJudge()
    answered = judge.score(answers.inputs).values["yes"]
    np.testing.assert_array_equal(answered, judge.score(answers.inputs).values["yes"])
    hollow = np.array([any(each in item.text for each in described_things.HOLLOW) for item in answers.inputs])
    assert not answers.truth[hollow].any() and 0.3 < hollow[answers.truth == 0].mean() < 0.5
    assert 0.85 < (answered == answers.truth)[~hollow].mean() < 0.98 and 0.3 < answered[hollow].mean() < 0.7
    similar = (
        described_things.ShapeBMAS(threshold=described_things.THRESHOLD).score(answers.inputs).values["shape_bmas"]
    )
    assert similar[hollow].mean() < 0.05 and similar[~hollow].mean() > 0.9


def test_episodes_go_through_their_steps_in_order():
    rng = np.random.default_rng(0)
    for _ in range(5):
        frames, steps = step_demonstrations.episode(rng)
        assert len(frames) == step_demonstrations.FRAMES and (np.diff(steps) >= 0).all() and set(steps) == {0, 1, 2}


@pytest.mark.integration
def test_selected_features_follow_the_steps():
    assert step_demonstrations.progress_correlation(900, 32)["correlation"][0] > 0.4
