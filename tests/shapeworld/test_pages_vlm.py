"""The VLM that searches pages: it loads anywhere, batches are those of a run, and there is room to learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.build.policies import build_policy
from mmrl.build.schemes import provided_model
from mmrl.config import load_config
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.shipped_models import VLM_PAGES
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.worlds.page_splits import expert, stacks, tidy
from tools.shapeworld_pretrain import vlm_pages
from tools.shapeworld_pretrain.vlm_hints import Hints
from tools.shapeworld_pretrain.vlm_worlds import REGION_NAMES


@pytest.fixture(scope="module")
def shipped():
    return AutoModelForImageTextToText.from_pretrained(VLM_PAGES).eval(), AutoProcessor.from_pretrained(VLM_PAGES)


def test_the_folder_is_found_by_its_name_and_holds_no_code():
    assert provided_model("shapeworld:pages", "vlm") == str(VLM_PAGES)
    files = [path for path in VLM_PAGES.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jinja"}
    assert all(tensor.isfinite().all() for tensor in load_file(VLM_PAGES / "model.safetensors").values())


@pytest.mark.integration
def test_batches_are_what_the_processor_makes_of_a_conversation(shipped):
    model, processor = shipped
    episode = vlm_pages.play(stacks("pages-train")[0], expert)
    turns = [{"role": "user", "content": episode.prompt}]
    for number, action in enumerate(episode.actions):
        turns.append({"role": "assistant", "content": action})
        if number < len(episode.pictures):
            turns.append({"role": "user", "content": [{"type": "image"}]})
    pictures = [Image.fromarray(picture) for picture in episode.pictures]
    inputs = processor(text=[processor.apply_chat_template(turns)], images=pictures, return_tensors="pt")
    ids, own = vlm_pages.EpisodeBatches(model, processor)._ids([episode])
    assert inputs["input_ids"][0, : ids.shape[1]].tolist() == ids[0].tolist()
    assert processor.tokenizer.decode(ids[0][own[0]]) == "".join(f"{action}<|im_end|>" for action in episode.actions)
    expected = inputs["pixel_values"].view(len(pictures), 64, -1)
    assert torch.allclose(vlm_pages.rgb_patches(np.stack(episode.pictures)), expected, atol=1e-6)


@pytest.mark.integration
def test_the_loss_is_the_likelihood_of_the_actions(shipped):
    model, processor = shipped
    episodes = [vlm_pages.play(stack, tidy(np.random.default_rng(0))) for stack in stacks("pages-development")[:8]]
    hints = Hints(vlm_model.VLMSize().width, REGION_NAMES)
    with torch.no_grad():
        losses, _ = vlm_pages.EpisodeBatches(model, processor).losses(episodes, hints)
        alone, _ = vlm_pages.EpisodeBatches(model, processor).losses(episodes[:1], hints)
    assert losses[0].item() == pytest.approx(alone.item(), abs=1e-3)  # padding changes nothing
    assert losses.mean() < 25  # of an untrained one: more than 90


def test_regions_lie_in_the_pictures():
    for stack in stacks("pages-train")[:16]:
        for regions in vlm_pages.play(stack, tidy(np.random.default_rng(1))).regions:
            assert regions and all(name in REGION_NAMES for name, _ in regions)
            assert all(0 <= x1 < x2 <= PIXELS and 0 <= y1 < y2 <= PIXELS for _, (x1, y1, x2, y2) in regions)


@pytest.mark.slow
def test_there_is_room_to_learn():
    config = load_config("shapes-pages", [])
    policy = build_policy(config.policy, config.sampling, config.media, config.environment)
    requests = [RolloutRequest(sample, 1, group) for group, sample in enumerate(samples("pages-development")[:64])]
    with torch.no_grad():
        episodes = policy.rollout(requests, seed=0).episodes
    outcomes = [episode.outcome for episode in episodes]
    assert 0.05 < np.mean([outcome["success"] for outcome in outcomes]) < 0.6
    assert all(any(event.name == "match" for event in episode.events) for episode in episodes)
