"""The embedded VLM: it loads anywhere, its tokens come back as text, and it looks before it answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor, Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from mmrl_shapeworld import shipped_models, vlm_model
from mmrl_shapeworld.vqa.question_splits import questions
from mmrl_shapeworld.vqa.questions import QUESTIONS
from tools.shapeworld_pretrain import vlm as pretrain
from tools.shapeworld_pretrain import vlm_batches as batches
from tools.shapeworld_pretrain.muon import Muon, orthogonal
from tools.shapeworld_pretrain.vlm_evaluate import answers, skill
from tools.shapeworld_pretrain.vlm_hints import NAMES, Hints, targets

ODD_TEXTS = ("Übergröße <x> 99  a\n\nb\t12, 13,14", "  two  spaces ", "56, 57, 100", "日本語 🙂", '{"a": [1, 2]}')


@pytest.fixture(scope="module")
def shipped():
    return AutoModelForImageTextToText.from_pretrained(shipped_models.VLM).eval(), AutoProcessor.from_pretrained(
        shipped_models.VLM
    )


@pytest.fixture(scope="module")
def question_sets():
    return {task: rows[:48] for task, rows in questions("vlm-development").items()}


def test_transformers_loads_the_vlm(shipped):
    model, processor = shipped
    assert type(model) is Qwen3VLForConditionalGeneration and type(processor) is Qwen3VLProcessor
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert 0.6e6 < sum(p.numel() for p in model.parameters()) < 3e6


def test_folder_is_small_and_holds_no_code():
    files = [path for path in shipped_models.VLM.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jinja"}
    assert sum(path.stat().st_size for path in files) < 6e6
    assert all(tensor.isfinite().all() for tensor in load_file(shipped_models.VLM / "model.safetensors").values())


def test_shipped_tokenizer_is_reproducible(shipped):
    """It was saved by another process, whose hashes were others."""
    assert vlm_model.tokenizer().get_vocab() == shipped[1].tokenizer.get_vocab()


@pytest.mark.parametrize("task", QUESTIONS)
def test_split_texts_round_trip_and_are_short(shipped, question_sets, task):
    words = shipped[1].tokenizer
    for question in question_sets[task]:
        for text in (question.prompt, question.right, question.annotated):
            assert words.decode(words(text).input_ids) == text
        assert len(words(question.right).input_ids) + 1 <= {"detection": 27, "grounding": 7}.get(task, 4)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_arbitrary_texts_round_trip(shipped, text):
    words = shipped[1].tokenizer
    assert words.decode(words(text).input_ids) == text


def test_chat_template_renders_media_in_order(shipped):
    content = [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "video"}, {"type": "text", "text": "b"}]
    turns = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": content},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    text = shipped[1].apply_chat_template(turns, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\ns<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>a<|vision_start|><|video_pad|><|vision_end|>b"
        "<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n"
    )


def test_images_of_other_sizes_become_similar_numbers_of_patches(shipped):
    for size in ((56, 56), (640, 480), (20, 200)):
        picture = torch.zeros(3, *size, dtype=torch.uint8)
        grid = shipped[1].image_processor([picture], return_tensors="pt")["image_grid_thw"][0]
        assert 16 <= grid.prod() <= 112


@pytest.mark.integration
@pytest.mark.parametrize("task", QUESTIONS)
def test_vlm_answers_in_form_and_better_than_chance(shipped, question_sets, task):
    """Guessing among answers of the task would give what right answers of other questions score."""
    model, processor = shipped
    sampled = skill(task, question_sets[task], answers(model, processor, question_sets[task], greedy=False), processor)
    guessed = skill(
        task, question_sets[task], [q.right for q in question_sets[task][1:] + question_sets[task][:1]], processor
    )
    assert sampled.well_formed >= 0.93
    assert sampled.reward > guessed.reward + 0.12


@pytest.mark.integration
def test_answers_depend_on_the_image(shipped, question_sets):
    """A negative control: the same question about another picture gets another answer, and a worse score."""
    model, processor = shipped
    rows = question_sets["grounding"]
    swapped = [replace(q, frames=other.frames) for q, other in zip(rows, rows[1:] + rows[:1], strict=True)]
    seen, blind = (
        skill("grounding", rows, answers(model, processor, questions, True), processor) for questions in (rows, swapped)
    )
    assert seen.reward > blind.reward + 0.25


@pytest.fixture(scope="module")
def untrained():
    torch.manual_seed(0)
    processor = vlm_model.processor()
    return vlm_model.build(processor.tokenizer), processor


@pytest.mark.parametrize("task", ["detection", "video-qa", "math"])
def test_warm_start_batches_equal_the_processor(untrained, task):
    """Ids, patches, places and so log-probabilities: the faster way must be the same way."""
    model, processor = untrained
    questions = [QUESTIONS[task](np.random.default_rng(n)) for n in range(4)]
    batch = batches.BatchBuilder(model, processor).batch(questions, [question.right for question in questions])
    inputs = batches.processed(processor, questions)
    seen = {}
    if batch.patches is not None:
        kind, name = ("video", "pixel_values_videos") if task == "video-qa" else ("image", "pixel_values")
        torch.testing.assert_close(batch.patches.flatten(0, 1), inputs[name], rtol=0, atol=1e-6)
        seen[kind] = batches.look(model.model.visual, batch.patches)
    with torch.no_grad():
        expected = model(**inputs).logits
        states = model.model(
            input_ids=batch.ids, position_ids=batch.positions, mm_encoder_outputs=seen, use_cache=False
        ).last_hidden_state
    for row, ids in enumerate(batch.ids):
        length = int(inputs["attention_mask"][row].sum())
        assert torch.equal(ids[:length], inputs["input_ids"][row, -length:])
        torch.testing.assert_close(model.lm_head(states[row, :length]), expected[row, -length:], rtol=0, atol=1e-5)
        text = processor.tokenizer.decode(ids[batch.answered[row]], skip_special_tokens=True)
        assert text == questions[row].right


def test_hint_labels_match_the_content_of_patches():
    question = QUESTIONS["puzzle"](np.random.default_rng(3))
    kinds, boxes = targets([question])
    (name, box) = question.regions[0]["ABCD".index(question.answer)]
    odd = kinds[0][:, 0] == NAMES.index(name)
    assert odd.any() and (kinds[0][odd][:, 1:].min(1).values == 1).all()
    squares = torch.arange(64).view(4, 2, 4, 2).permute(0, 2, 1, 3).flatten()
    middle = torch.stack([squares % 8, squares // 8], 1) * 7 + 3.5
    placed = boxes[0][odd] * 56 + middle[odd].repeat(1, 4)
    torch.testing.assert_close(placed, torch.tensor([box + box] * int(odd.sum())).float(), atol=1e-4, rtol=0)
    assert (kinds[0][:, 0] == len(NAMES)).any()


@pytest.mark.integration
def test_training_steps_update_every_parameter(untrained, tmp_path):
    """The vision tower and deepstack included: the optimizers hold every parameter."""
    model, processor = untrained
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    pretrain.fit(model, processor, tmp_path, 0.001, np.random.default_rng(0))
    still = [name for name, p in model.named_parameters() if torch.equal(p, before[name])]
    assert still == []


def test_muon_orthogonalizes_matrices():
    """Against singular values by LAPACK; and a step has the size that the rate says."""
    for shape in ((256, 96), (96, 256)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(3, *shape)))
        assert values.min() > 0.6 and values.max() < 1.25
    matrix = torch.nn.Parameter(torch.zeros(8, 2))
    matrix.grad = torch.randn(8, 2)
    Muon([matrix], lr=0.1).step()
    values = torch.linalg.svdvals(matrix.detach()) / (0.1 * (8 / 2) ** 0.5)
    assert values.min() > 0.6 and values.max() < 1.25


def test_hints_are_learnt_by_gradient():
    hints, squares = Hints(8), torch.randn(32, 8, requires_grad=True)
    questions = [QUESTIONS["ocr"](np.random.default_rng(n)) for n in range(2)]
    hints(squares, *targets(questions)).backward()
    assert squares.grad is not None and (squares.grad.abs().sum(1) > 0).all()
