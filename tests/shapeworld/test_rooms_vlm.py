"""The VLM of rooms: its episodes are read as a run reads them, there is room to learn, and its training runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.build.policies import build_policy
from mmrl.build.schemes import provided_model
from mmrl.config import load_config
from mmrl.rollout_request import RolloutRequest, TargetText
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.shipped_models import VLM_ROOMS
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.worlds.room_layouts import boxes_of, measures_of
from mmrl_shapeworld.worlds.room_splits import expert, rooms, trace
from tools.shapeworld_pretrain import vlm_rooms
from tools.shapeworld_pretrain.picture_episodes import PictureRows
from tools.shapeworld_pretrain.vlm_hints import Hints


@pytest.fixture(scope="module")
def policy():
    config = load_config("shapes-rooms", [])
    return build_policy(config.policy, config.sampling, config.media, config.environment)


def test_the_folder_is_found_by_its_name_and_holds_no_code():
    assert provided_model("shapeworld:rooms", "vlm") == str(VLM_ROOMS)
    files = [path for path in VLM_ROOMS.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jinja"}
    assert all(tensor.isfinite().all() for tensor in load_file(VLM_ROOMS / "model.safetensors").values())


@pytest.mark.integration
def test_episodes_are_read_as_a_run_reads_them(policy):
    chosen, known = samples("rooms-development")[:3], rooms("rooms-development")[:3]
    turns = [trace(room, expert) for room in known]
    targets = [TargetText(s, "", n, turns=each) for n, (s, each) in enumerate(zip(chosen, turns, strict=True))]
    rollout = policy.score_targets(targets)
    episodes = [vlm_rooms.play(room, expert) for room in known]
    with torch.no_grad():
        hints = Hints(vlm_model.VLMSize().width, vlm_rooms.NAMES)
        loss, hint = PictureRows(policy.vlm.model, policy.vlm.processor).loss(episodes, hints)
    assert hint.isfinite()
    torch.testing.assert_close(-rollout.log_probs[rollout.mask].mean(), loss, atol=2e-4, rtol=1e-4)


def test_regions_are_where_the_blocks_lie():
    for room in rooms("rooms-train")[:8]:
        first, second, _ = vlm_rooms.play(room, vlm_rooms.sure_hand(np.random.default_rng(0))).turns
        assert [box for _, box in first.regions[1:]] == boxes_of(room, room.heap)
        assert second.regions[0] == (vlm_rooms.TABLE, room.table)
        assert all(name in vlm_rooms.NAMES for name, _ in second.regions)
        x1, y1, x2, y2 = second.regions[1][1]
        assert 0 <= x1 < x2 <= PIXELS and 0 <= y1 < y2 <= PIXELS


def test_the_sure_hand_places_blocks_where_they_belong():
    placed = vlm_rooms.sure_hand(np.random.default_rng(1))
    shares = [measures_of(room, _layout(room, placed)).related for room in rooms("rooms-train")[:64]]
    assert np.mean(shares) > 0.9


def _layout(room, annotator):
    episode = vlm_rooms.RoomEpisode(room)
    episode.step(annotator(episode))
    return episode.layout


@pytest.mark.integration
def test_there_is_room_to_learn(policy):
    requests = [RolloutRequest(sample, 1, group) for group, sample in enumerate(samples("rooms-development")[:32])]
    with torch.no_grad():
        outcomes = [episode.outcome for episode in policy.rollout(requests, seed=0).episodes]
    assert np.mean([outcome["invalid"] for outcome in outcomes]) < 0.3
    assert 0.3 < np.mean([outcome["score"] for outcome in outcomes]) < 0.85
    assert 0.2 < np.mean([outcome["collisions"] for outcome in outcomes]) < 0.8


@pytest.mark.integration
def test_its_training_starts_from_the_model_of_the_worlds_and_saves_what_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(vlm_rooms, "EPISODES", 2)
    vlm_rooms.train(tmp_path, 0.001, vlm_rooms.VLM_WORLDS, 0, 0.5, 1.0)
    model, processor = AutoModelForImageTextToText.from_pretrained(tmp_path), AutoProcessor.from_pretrained(tmp_path)
    assert model.get_input_embeddings().num_embeddings == len(processor.tokenizer)
