"""The VLM that judges pairs of pictures: it loads anywhere, and its training reads what the processor makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.build.schemes import provided_model
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.shipped_models import VLM_JUDGE, VLM_WORLDS
from mmrl_shapeworld.vqa.canvas import PALETTE
from mmrl_shapeworld.worlds.judge_traces import SURE
from tools.shapeworld_pretrain import vlm_judge
from tools.shapeworld_pretrain.vlm_hints import Hints


def test_the_folder_is_found_by_its_name_and_holds_no_code():
    assert provided_model("shapeworld:judge", "vlm") == str(VLM_JUDGE)
    files = [path for path in VLM_JUDGE.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jinja"}
    assert sum(path.stat().st_size for path in files) < 6e6
    assert all(tensor.isfinite().all() for tensor in load_file(VLM_JUDGE / "model.safetensors").values())
    words = AutoProcessor.from_pretrained(VLM_JUDGE).tokenizer
    assert words.get_vocab() == vlm_model.judge_tokenizer().get_vocab()


def test_words_of_judges_stand_behind_those_of_the_worlds_and_are_a_token_each():
    words, worlds = vlm_model.judge_tokenizer(), vlm_model.tokenizer(of_worlds=True)
    assert worlds.get_vocab().items() <= words.get_vocab().items()
    text = "<think>number 3 2 A;place left top =;</think>B"
    ids = words(text).input_ids
    assert len(ids) == 13 and words.decode(ids) == text


@pytest.fixture(scope="module")
def model_and_processor():
    return vlm_judge.start(VLM_WORLDS)


def test_rows_of_two_pictures_are_as_the_processor_makes_them(model_and_processor):
    model, processor = model_and_processor[0].eval(), model_and_processor[1]
    rng = np.random.default_rng(0)
    pairs = [vlm_judge.draw_pair(rng) for _ in range(2)]
    rows = [row for n, pair in enumerate(pairs) for row in vlm_judge.rows_about(n, pair, rng, SURE)]
    with torch.no_grad():
        losses, _ = vlm_judge.JudgeRows(model, processor).losses(pairs, rows, Hints(96, vlm_judge.REGION_NAMES))
    assert {row.better_first for row in rows} == {True, False}
    for row, loss in zip(rows, losses, strict=True):
        content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": row.prompt}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        shots = [Image.fromarray(PALETTE[each]) for each in pairs[row.pair].pictures()]
        shots = shots if row.better_first else shots[::-1]
        inputs = processor(text=[text + row.answer + vlm_model.END], images=shots, return_tensors="pt")
        answer = len(processor.tokenizer(row.answer).input_ids) + 1
        with torch.no_grad():
            scores = model(**inputs).logits[0, :-1].log_softmax(-1)
        expected = -scores.gather(1, inputs["input_ids"][0, 1:, None])[-answer:].sum() / answer**0.5
        assert loss == pytest.approx(float(expected), abs=2e-3)


def test_its_training_starts_from_the_other_model_and_saves_what_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(vlm_judge, "PAIRS", 2)
    vlm_judge.train(tmp_path, minutes=0.001)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert model.config.text_config.vocab_size == len(AutoProcessor.from_pretrained(tmp_path).tokenizer)


@pytest.mark.slow
def test_it_judges_well_where_it_thinks_and_has_room_where_it_does_not():
    assert 0.7 < vlm_judge.measure(VLM_JUDGE, "judge-development", greedy=False)["verdict"] < 0.93
    assert vlm_judge.measure(VLM_JUDGE, "judge-development", False, "<think>number")["both_orders"] > 0.85
    assert vlm_judge.measure(VLM_JUDGE, "judge-development", False, "<think></think>")["verdict"] < 0.75
