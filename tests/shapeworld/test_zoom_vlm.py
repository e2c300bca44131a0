"""The VLM that looks closer: it loads anywhere, reads what it hits, and has room to hit more often."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.build.schemes import provided_model
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.shipped_models import VLM_WORLDS, VLM_ZOOM
from mmrl_shapeworld.worlds.zoom_environment import INSTRUCTIONS
from mmrl_shapeworld.worlds.zoom_pages import LARGE, PAGE
from mmrl_shapeworld.worlds.zoom_splits import habitual_square
from tools.shapeworld_pretrain import vlm_zoom
from tools.shapeworld_pretrain.vlm_hints import Hints


def test_the_folder_is_found_by_its_name_and_holds_no_code():
    assert provided_model("shapeworld:zoom", "vlm") == str(VLM_ZOOM)
    files = [path for path in VLM_ZOOM.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jinja"}
    assert sum(path.stat().st_size for path in files) < 6e6
    assert all(tensor.isfinite().all() for tensor in load_file(VLM_ZOOM / "model.safetensors").values())
    processors = [AutoProcessor.from_pretrained(folder) for folder in (VLM_ZOOM, VLM_WORLDS)]
    assert processors[0].tokenizer.get_vocab() == processors[1].tokenizer.get_vocab()


@pytest.mark.slow
def test_it_reads_what_it_hits_and_has_room_to_hit_more_often():
    found = vlm_zoom.measure(VLM_ZOOM, "zoom-development", "require", greedy=False, number=128)
    assert found["zoom looked"] > 0.75
    assert 0.15 < found["zoom hit"] < 0.5
    assert found["zoom read"] > 0.5 > 0.3 > found["zoom missed-read"]


@pytest.mark.slow
def test_without_a_template_it_answers_at_once_and_guesses():
    found = vlm_zoom.measure(VLM_ZOOM, "zoom-development", "none", greedy=True, number=128)
    assert found["zoom looked"] < 0.05 and found["zoom success"] < 0.3


@pytest.fixture(scope="module")
def model_and_processor():
    return AutoModelForImageTextToText.from_pretrained(VLM_WORLDS).eval(), vlm_model.processor(of_worlds=True)


def test_rows_of_two_turns_are_as_the_processor_makes_them(model_and_processor):
    model, processor = model_and_processor
    rows = vlm_zoom.draw_rows("cuts", np.random.default_rng(0), careless=True)[:3]
    with torch.no_grad():
        losses, _ = vlm_zoom.ZoomRows(model, processor).losses(rows, Hints(96, vlm_zoom.REGION_NAMES))
    image = {"type": "image"}
    for row, loss in zip(rows, losses, strict=True):
        words = f"{INSTRUCTIONS[row.template]}\n\n{row.page.prompt}"
        turns = [
            {"role": "user", "content": [image, {"type": "text", "text": words}]},
            {"role": "assistant", "content": row.turns[0]},
            {"role": "user", "content": [image]},
        ]
        text = processor.apply_chat_template(turns, add_generation_prompt=True) + row.turns[1] + vlm_model.END
        pictures = [Image.fromarray(made(row)[0]) for made in (vlm_zoom.page_of, vlm_zoom.cut_of)]
        inputs = processor(text=[text], images=pictures, return_tensors="pt")
        with torch.no_grad():
            scores = model(**inputs).logits[0, :-1].log_softmax(-1)
        expected = -scores.gather(1, inputs["input_ids"][0, 1:, None])[-2:].sum() / 2**0.5
        assert loss == pytest.approx(float(expected), abs=1e-3)


def test_an_annotator_of_lower_squares_often_looks_above():
    rng = np.random.default_rng(0)
    right: dict[bool, list[bool]] = {True: [], False: []}
    above: list[bool] = []
    for _ in range(300):
        page = vlm_zoom.draw_page(rng, 1)
        left, top = page.boxes[0][:2]
        lower = top > PAGE / 2
        square = habitual_square(page, rng)
        right[lower].append(square == 0)
        if lower:
            x, y = page.boxes[square][:2]
            above.append(y < PAGE / 2 and (x < PAGE / 2) == (left < PAGE / 2) and square != 0)
    assert 0.42 < np.mean(right[False]) < 0.68
    assert np.mean(right[True]) < np.mean(above) < 0.65


def test_the_hint_of_attention_is_zero_where_all_of_it_is_right(model_and_processor):
    batches = vlm_zoom.ZoomRows(*model_and_processor)
    rows = vlm_zoom.draw_rows("letters", np.random.default_rng(0), careless=False)[:4]
    assert rows[0].page.scale == LARGE and len({row.page.colours[0] for row in rows}) == 4
    ids, _ = batches.token_ids(rows)
    batches.attention = torch.full((4, 3, ids.shape[1], ids.shape[1]), 1 / 16)
    one = float(batches.attention_loss(rows, ids))
    assert 0.5 < one < 3  # 16 tokens of a picture, of which a square has one to nine
    batches.attention = 100 * batches.attention
    assert float(batches.attention_loss(rows, ids)) < one - 4


@pytest.mark.integration
def test_its_training_starts_from_the_other_model_and_saves_what_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(vlm_zoom, "BOXES", 1)
    monkeypatch.setattr(vlm_zoom, "CUTS", 1)
    vlm_zoom.train(tmp_path, minutes=0.001)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert model.config.text_config.vocab_size == len(AutoProcessor.from_pretrained(tmp_path).tokenizer)
