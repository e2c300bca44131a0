"""The VLM of the worlds: it loads anywhere, and its rewards are neither at the floor nor at the ceiling."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.build.schemes import provided_model
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.shipped_models import VLM_WORLDS
from mmrl_shapeworld.worlds.world_splits import WORLDS, world_questions
from tools.shapeworld_pretrain import vlm_worlds
from tools.shapeworld_pretrain.vlm_batches import BatchBuilder
from tools.shapeworld_pretrain.vlm_evaluate import LONGEST, answers
from tools.shapeworld_pretrain.vlm_hints import targets


@pytest.fixture(scope="module")
def shipped():
    return AutoModelForImageTextToText.from_pretrained(VLM_WORLDS).eval(), AutoProcessor.from_pretrained(VLM_WORLDS)


@pytest.fixture(scope="module")
def question_sets():
    return {
        world: [question for part in ("development", "ood") for _, question in world_questions(world, part)[:64]]
        for world in WORLDS
    }


def test_the_folder_is_found_by_its_name_and_holds_no_code():
    assert provided_model("shapeworld:vlm-worlds", "vlm") == str(VLM_WORLDS)
    files = [path for path in VLM_WORLDS.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jinja"}
    assert sum(path.stat().st_size for path in files) < 6e6
    assert all(tensor.isfinite().all() for tensor in load_file(VLM_WORLDS / "model.safetensors").values())


def test_its_tokenizer_adds_words_behind_those_of_the_other_model(shipped):
    vocabulary = shipped[1].tokenizer.get_vocab()
    assert vlm_model.tokenizer(of_worlds=True).get_vocab() == vocabulary
    assert vlm_model.tokenizer().get_vocab().items() < vocabulary.items()
    assert shipped[0].config.text_config.vocab_size == len(vocabulary)


@pytest.mark.parametrize("world", WORLDS)
def test_every_text_of_a_world_comes_back_and_is_short(shipped, question_sets, world):
    words = shipped[1].tokenizer
    texts = [text for q in question_sets[world] for text in (q.prompt, q.right, q.annotated)]
    assert words.batch_decode(words(texts).input_ids) == texts
    assert max(len(words(question.right).input_ids) for question in question_sets[world]) < LONGEST


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_its_rewards_leave_room_in_both_directions(shipped, question_sets, world):
    torch.manual_seed(0)
    questions = question_sets[world][:64]
    for greedy in (False, True):
        reward = vlm_worlds.mean_reward(world, questions, answers(*shipped, questions, greedy))
        low = 0.08 if world == "graph" else 0.15  # a graph is answered little better than by a random letter
        assert low < reward < (0.9 if greedy else 0.85), f"{'greedy' if greedy else 'sampled'}: {reward:.3f}"


def test_hints_know_the_name_of_every_region(shipped, question_sets):
    for questions in question_sets.values():
        kinds, _ = targets(questions[::16], vlm_worlds.REGION_NAMES)
        assert kinds[..., 0].max() <= len(vlm_worlds.REGION_NAMES)
    batch = BatchBuilder(*shipped, vlm_worlds.REGION_NAMES).batch(
        question_sets["graph"][:2], [question.right for question in question_sets["graph"][:2]]
    )
    assert batch.hints is not None and batch.answered.sum() == 4


@pytest.mark.integration
def test_its_training_starts_from_the_other_model_and_saves_what_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(vlm_worlds, "GROUPS", ({"refer": 2, "graph": 1}, {"clip": 1}))
    vlm_worlds.train(tmp_path, minutes=0.001)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    processor = AutoProcessor.from_pretrained(tmp_path)
    assert model.get_input_embeddings().num_embeddings == len(processor.tokenizer)
