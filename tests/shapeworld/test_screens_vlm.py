"""The VLM of screens: it loads anywhere, its success leaves room in both directions, and its training runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.build.schemes import provided_model
from mmrl.config.media import MediaConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.rollout_request import TargetText
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.shipped_models import VLM_SCREENS, VLM_SCREENS_LONGER
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.worlds.button_environment import ButtonScreens
from mmrl_shapeworld.worlds.button_splits import expert, tasks, trace
from tools.shapeworld_pretrain import vlm_screens
from tools.shapeworld_pretrain.picture_episodes import PictureRows
from tools.shapeworld_pretrain.vlm_hints import Hints

FOLDERS = {"shapeworld:screens": VLM_SCREENS, "shapeworld:screens-longer": VLM_SCREENS_LONGER}


@pytest.mark.parametrize("name", FOLDERS)
def test_the_folder_is_found_by_its_name_and_holds_no_code(name):
    folder = FOLDERS[name]
    assert provided_model(name, "vlm") == str(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jinja"}
    assert sum(path.stat().st_size for path in files) < 6e6
    assert all(tensor.isfinite().all() for tensor in load_file(folder / "model.safetensors").values())


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_its_success_leaves_room_in_both_directions(name):
    for greedy in (False, True):
        found = vlm_screens.measure(FOLDERS[name], "screens-short-development", greedy, 64)
        assert 0.08 < found["all"] < 0.8, f"{'greedy' if greedy else 'sampled'}: {found}"


@pytest.mark.integration
def test_episodes_are_read_as_a_run_reads_them():
    """The loss of the expert's clicks is that of the policy, which plays the same episodes in the environment."""
    chosen = samples("screens-development")[:3]
    clicks = [trace(task, expert) for task in tasks("screens-development")[:3]]
    policy = VLMPolicy.from_config(
        VLMConfig(model=str(VLM_SCREENS), device="cpu"), TokenSamplingConfig(temperature=1.0), MediaConfig()
    )
    policy.play_in(ButtonScreens())
    rollout = policy.score_targets(
        [TargetText(s, "", n, turns=c) for n, (s, c) in enumerate(zip(chosen, clicks, strict=True))]
    )
    model, processor = policy.vlm.model, policy.vlm.processor
    episodes = [vlm_screens.play(task, expert, True) for task in tasks("screens-development")[:3]]
    assert [tuple(turn.action for turn in episode.turns) for episode in episodes] == clicks
    with torch.no_grad():
        hints = Hints(vlm_model.VLMSize().width, vlm_screens.NAMES)
        loss, hint = PictureRows(model, processor).loss(episodes, hints)
    own = rollout.log_probs[rollout.mask]
    assert hint.isfinite()
    torch.testing.assert_close(-own.mean(), loss, atol=2e-4, rtol=1e-4)


def test_the_sure_hand_goes_astray_and_only_its_right_clicks_are_learnt():
    rng = np.random.default_rng(0)
    turns = [
        turn
        for _ in range(60)
        for turn in vlm_screens.play(vlm_screens.draw_task(rng), vlm_screens.sure_hand(rng), False).turns
    ]
    shares = np.mean([turn.is_learnt for turn in turns])
    assert 0.7 < shares < 0.97
    for turn in turns:
        x, y = map(int, turn.action.split(", "))
        hit = any(x1 <= x <= x2 and y1 <= y <= y2 for _, (x1, y1, x2, y2) in turn.regions)
        assert hit or not turn.is_learnt


@pytest.mark.integration
def test_its_training_starts_from_the_model_of_the_worlds_and_saves_what_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(vlm_screens, "EPISODES", 2)
    vlm_screens.train(tmp_path, minutes=0.001)
    model, processor = AutoModelForImageTextToText.from_pretrained(tmp_path), AutoProcessor.from_pretrained(tmp_path)
    assert model.get_input_embeddings().num_embeddings == len(processor.tokenizer)
