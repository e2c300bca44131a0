"""A task defines the instructions, the answer format and the reward of a line of data."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from PIL import Image

from mmrl.config import recipes
from mmrl.data import DataError, RewardChoice, Sample
from mmrl.data.media.budget import ImageBudget, MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.rewards import load
from mmrl.rewards.core.reward_io import reward_input
from mmrl.understanding.tasks.answer_instructions import option_list
from mmrl.understanding.tasks.coordinates import CoordinateFormat, coordinate_format
from mmrl.understanding.tasks.definitions import BUILT_IN_TASKS, apply_task, apply_tasks
from mmrl.understanding.vlm_family import VLMFamily
from tests.data.media_files import few_colours, gif_uri, moving_square, png_uri

PICTURE = png_uri(Image.new("RGB", (200, 100)))
CLIP = gif_uri(few_colours(moving_square(2)))
TABLE = r"\begin{tabular}{ll} a & b \\ 1 & 2 \end{tabular}"
BOX = [20, 10, 100, 50]
CLICK = {"action": "click", "box": BOX}

# task, what the line holds, the right answer in thousandths, a wrong answer
LINES: list[tuple[str, dict[str, Any], str, str]] = [
    ("grounding", {"answer": BOX}, '[{"bbox_2d": [100, 100, 500, 500]}]', "[100, 100, 500, 900]"),
    (
        "detection",
        {"answer": [{"box": BOX, "label": "cat"}]},
        '[{"bbox_2d": [100, 100, 500, 500], "label": "cat"}]',
        '[{"bbox_2d": [100, 100, 500, 500], "label": "dog"}]',
    ),
    ("detection", {"answer": []}, "[]", "[100, 100, 500, 500]"),
    ("counting", {"answer": 3}, "3", "4"),
    ("ocr", {"answer": "No Entry"}, "No Entry", "no entry"),
    ("chart", {"answer": "12.5"}, "12.6", "14"),
    ("chart", {"answer": ["a", 2]}, '["a", "2"]', '["2", "a"]'),
    ("chart", {"answer": "B", "metadata": {"choices": ["red", "blue"]}}, "B", "A"),
    ("math", {"answer": r"\frac{1}{2}"}, "0.5", "2"),
    ("puzzle", {"answer": "blue", "metadata": {"choices": {"A": "red", "B": "blue"}}}, "B", "A"),
    ("science", {"answer": "3.5"}, "3.5", "4.5"),
    ("science", {"answer": "iron"}, "iron", "gold"),
    ("video-qa", {"answer": "to the left"}, "To the left", "left to the"),
    ("video-qa", {"answer": 3}, "3", "3.01"),
    ("temporal-grounding", {"answer": [1, 2.5]}, "[1, 2.5]", "[1, 2]"),
    ("gui", {"answer": CLICK}, '{"action": "click", "coordinate": [300, 300]}', '{"action": "click"}'),
    ("gui", {"answer": {"action": "type", "text": "hi"}}, '{"action": "type", "text": "hi"}', "type(content='ho')"),
    ("table2latex", {"answer": TABLE}, TABLE, TABLE.replace("1", "3")),
    ("judging", {"answer": "B", "images": (PICTURE, PICTURE)}, "B", "A"),
]
MEDIA = {"video-qa": "videos", "temporal-grounding": "videos", "math": None, "puzzle": None, "science": None}
THOUSANDTHS = CoordinateFormat("norm_1000")


def sample_of(task: str, line: dict[str, Any]) -> Sample:
    kind = MEDIA.get(task, "images")
    media = {kind: (CLIP if kind == "videos" else PICTURE,)} if kind else {}
    return Sample(id="7", prompt="What is this?", task=task, **({"metadata": {"space": "pixel"}} | media | line))


def total(sample: Sample, text: str) -> float:
    item = reward_input(sample, text, group=0, id="0")
    outputs = [load(each.name, **each.args).score([item]) for each in sample.rewards]
    assert all(status != "error" for output in outputs for column in output.status.values() for status in column)
    return sum(
        each.weight * float(output.values[each.name][0]) for each, output in zip(sample.rewards, outputs, strict=True)
    )


@pytest.mark.parametrize("task, line, right, wrong", LINES, ids=[f"{line[0]}-{n}" for n, line in enumerate(LINES)])
@pytest.mark.parametrize("thinking", ["off", "tags", "native"])
def test_right_answers_earn_1_and_wrong_ones_less(task, line, right, wrong, thinking):
    sample = apply_task(sample_of(task, line), THOUSANDTHS, thinking)
    form = sample.metadata["answer_form"]
    texts = [rf"\boxed{{{each}}}" if form == "boxed" else each for each in (right, wrong)]
    if thinking == "tags" and form != "boxed":
        texts = [f"<answer>{each}</answer>" for each in texts]
    if thinking != "off":
        texts = [("<think>" if thinking == "tags" else "") + f"So.</think>{each}" for each in texts]
    scores = [total(sample, text) for text in texts]
    assert scores[0] == pytest.approx(1) and scores[1] < 0.95
    assert sum(each.weight for each in sample.rewards) == pytest.approx(1)


@pytest.mark.parametrize("task, line, right, wrong", LINES, ids=[f"{line[0]}-{n}" for n, line in enumerate(LINES)])
def test_declared_answer_format_is_the_one_read(task, line, right, wrong):
    """Negative control: text outside of the requested form is no answer."""
    sample = apply_task(sample_of(task, line), THOUSANDTHS, "tags")
    assert total(sample, right) < 0.2
    thought = f"<think>{right}</think>" + (
        "" if sample.metadata["answer_form"] == "boxed" else f"<answer>{wrong}</answer>"
    )
    assert total(sample, thought) < 1


def test_every_task_has_a_recipe_of_its_name():
    generators = {"text-to-image", "edit", "inpaint", "text-to-video", "image-to-video", "token-image"}
    assert set(recipes.TASKS) == generators
    assert {name: recipes.find_recipe(name).name for name in BUILT_IN_TASKS} == {name: name for name in BUILT_IN_TASKS}


@pytest.mark.parametrize(
    "space, sentence, box",
    [
        (CoordinateFormat("norm_1000"), "from 0 to 1000", [100, 100, 500, 500]),
        (CoordinateFormat("norm_1"), "from 0 to 1 over", [0.1, 0.1, 0.5, 0.5]),
        (CoordinateFormat("pixel"), "which is 200 wide and 100 high", BOX),
        (
            CoordinateFormat("pixel", input_size=lambda size: (56, 28)),
            "which is 56 wide and 28 high",
            [5.6, 2.8, 28, 14],
        ),
    ],
)
@pytest.mark.parametrize(
    "input_space, answer",
    [("pixel", BOX), ("norm_1", [0.1, 0.1, 0.5, 0.5]), ("norm_1000", [100, 100, 500, 500])],
)
def test_boxes_are_compared_in_any_pair_of_spaces(space, sentence, box, input_space, answer):
    sample = apply_task(sample_of("grounding", {"answer": answer, "metadata": {"space": input_space}}), space)
    assert sentence in sample.prompt and sample.rewards[0].args == {"space": space.space}
    assert total(sample, json.dumps(box)) == pytest.approx(1, abs=1e-6)
    far = [value / 2 for value in box]
    assert total(sample, json.dumps(far)) < 0.5
    click = sample_of("gui", {"answer": {"action": "click", "box": answer}, "metadata": {"space": input_space}})
    centre = {"action": "click", "coordinate": [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]}
    assert total(apply_task(click, space), json.dumps(centre)) == 1


def test_settings_of_a_sample_take_precedence():
    own = replace(sample_of("grounding", {"answer": BOX}), rewards=(RewardChoice("box_giou"),))
    assert apply_task(own, THOUSANDTHS, "tags") is own
    none = Sample(id="a", prompt="draw")
    assert apply_task(none, THOUSANDTHS, "tags") is none
    sized = sample_of("grounding", {"answer": BOX, "metadata": {"space": "pixel", "size": [400, 100], "rank": 1}})
    assert apply_task(sized, THOUSANDTHS).metadata == {
        "space": "pixel",
        "size": [400, 100],
        "rank": 1,
        "answer_form": "auto",
    }


def test_options_are_listed_unless_in_the_question():
    sample = sample_of("puzzle", {"answer": "B", "metadata": {"choices": ["red", "blue"]}})
    assert "\nA. red\nB. blue\nAnswer with nothing but the letter" in apply_task(sample, THOUSANDTHS).prompt
    named = replace(sample, prompt="Is it (A) red or (B) blue?")
    assert apply_task(named, THOUSANDTHS).prompt.startswith("Is it (A) red or (B) blue?\nAnswer with nothing but")


@pytest.mark.parametrize("listed", ["Which? A red, B blue.", "Which?\nA. red\nB. blue", "Which?\nA: red\nB: blue\n"])
def test_options_in_the_question_have_their_letters(listed):
    choices = {"choices": ["red", "blue"]}
    assert option_list(Sample(id="a", prompt=listed, metadata=choices)) == ""
    own = {"choices": ["A. red", "B. blue"]}
    assert option_list(Sample(id="a", prompt="Which?\nA. red\nB. blue", metadata=own)) == ""


@pytest.mark.parametrize(
    "prompt, choices",
    [
        ("How many of the 12 circles are red?", ["1", "2"]),
        ("Is the cat on the mat?", ["on", "at"]),
        ("Is the circle left or right of the square?", ["left", "right"]),
        ("Which is it? A redder one, B bluest?", ["red", "blue"]),
    ],
)
def test_options_whose_texts_are_merely_part_of_the_question_are_listed(prompt, choices):
    sample = Sample(id="a", prompt=prompt, metadata={"choices": choices})
    assert option_list(sample) == f"A. {choices[0]}\nB. {choices[1]}"


def test_instructions_are_added_to_the_last_request():
    turns = (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]},
    )
    sample = Sample(id="a", messages=turns, images=(PICTURE,), answer=3, task="counting")
    applied = apply_task(sample, THOUSANDTHS)
    assert applied.messages[0] == turns[0] and turns[1]["content"] == sample.messages[1]["content"]
    assert applied.messages[1]["content"][-1] == {
        "type": "text",
        "text": "Answer with nothing but the number, in digits.",
    }
    plain = replace(sample, messages=({"role": "user", "content": "How many?"}, {"role": "assistant", "content": "x"}))
    assert apply_task(plain, THOUSANDTHS).messages[0]["content"].startswith("How many?\nAnswer with")


def test_paligemma_prompts_start_with_detect_and_use_location_tokens():
    sample = sample_of("grounding", {"answer": BOX})
    applied = apply_task(replace(sample, prompt="the cat"), CoordinateFormat("norm_1", location_tokens=True))
    assert applied.prompt == "detect the cat"
    assert total(applied, "<loc0102><loc0102><loc0512><loc0512> the cat") > 0.99


@pytest.mark.parametrize(
    "line, problem",
    [
        ({"task": "groundin"}, r"sample '7': there is no task 'groundin': did you mean grounding"),
        ({"task": "swimming"}, "there is no task 'swimming': .*A sample with rewards needs no task"),
        ({"metadata": {}}, r"does not say what its coordinates count: write \"metadata\": {\"space\": \"pixel\"}"),
        ({"metadata": {"space": "percent"}}, "says 'percent' to what its coordinates count"),
        ({"images": ()}, "the task grounding needs an image, and it comes with none"),
        (
            {"images": (), "conditions": {"image": "a.png"}},
            "comes with none; the key of its pictures is images, a list",
        ),
        ({"task": "video-qa"}, "the task video-qa needs a video"),
        ({"task": "counting", "images": ()}, "the task counting needs an image or a video"),
        ({"images": (PICTURE, PICTURE)}, r"has 2 pictures and boxes in one of them: write that one's \"size\""),
        ({"answer": [20, 10, 300, 50]}, r"references\['answer'\]: the box .* lies outside the picture"),
    ],
)
def test_incompatible_samples_raise(line, problem):
    sample = replace(sample_of("grounding", {"answer": BOX}), **line)
    with pytest.raises(DataError, match=problem):
        apply_task(sample, CoordinateFormat("pixel", input_size=lambda size: (50, 25)))


@dataclass
class Looker:
    """As much of a policy as tasks ask about."""

    vlm: Any
    reader: MediaReader

    def coordinates(self, requested: Any) -> CoordinateFormat:
        family = self.vlm.family
        return coordinate_format(family.name, family.space, None, self.reader.budget.image, requested)

    def check_sample(self, sample: Sample) -> None:
        if sample.videos:
            raise DataError(f"sample {sample.id!r} holds a video")


@dataclass
class Model:
    family: VLMFamily
    processor: Any = None


def looker(family: VLMFamily) -> Looker:
    return Looker(Model(family), MediaReader(MediaBudget(ImageBudget(max_pixels=5000))))


def test_coordinate_space_is_that_of_the_family_or_the_config():
    sample = sample_of("grounding", {"answer": BOX})
    (thousandths,) = apply_tasks(looker(VLMFamily("qwen3_vl", space="norm_1000")), [sample])
    assert thousandths.rewards[0].args["space"] == "norm_1000"
    (pixels,) = apply_tasks(looker(VLMFamily("qwen2_5_vl", space="pixel")), [sample])
    assert "100 wide and 50 high" in pixels.prompt and pixels.metadata["size"] == [100, 50]
    (set_,) = apply_tasks(looker(VLMFamily("paligemma")), [sample], space="norm_1000")
    assert set_.rewards[0].args["space"] == "norm_1000" and "bbox_2d" in set_.prompt
    (tokens,) = apply_tasks(looker(VLMFamily("paligemma")), [sample])
    assert tokens.prompt.startswith("detect ")


def test_run_task_applies_to_samples_without_one():
    bare = Sample(id="a", prompt="x", images=(PICTURE,), answer=3)
    own = replace(bare, rewards=(RewardChoice("numeric"),))
    counted, read, kept = apply_tasks(looker(VLMFamily("f")), [bare, replace(bare, task="ocr"), own], task="counting")
    assert (counted.task, read.task, kept.task) == ("counting", "ocr", None)
    assert kept is own and counted.rewards == (RewardChoice("count_exact"),)


def test_unsupported_media_raise_before_training():
    with pytest.raises(DataError, match="sample '7' holds a video"):
        apply_tasks(looker(VLMFamily("f")), [sample_of("video-qa", {"answer": "x"})])
