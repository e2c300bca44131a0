"""Goals in words: closed forms, and the authors' code written out."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from mmrl.rewards import RewardError, Status, load
from mmrl.rewards.models.clip_rewards import goal_baseline_reward
from tests.rewards.models.test_similarity import raw_cosines
from tests.rewards.models.tiny_models import answer, answers


def vectors(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(count, 12, generator=generator, dtype=torch.float64), dim=-1)


def by_matrix(state, goal, baseline, alpha):
    """The authors' form: a projection matrix of the direction, mixed with the identity."""
    direction = (goal - baseline)[None]
    projection = alpha * direction.T @ direction / direction.norm() ** 2 + (1 - alpha) * torch.eye(
        len(goal), dtype=goal.dtype
    )
    return 1 - ((state - goal) @ projection).norm() ** 2 / 2


def by_geometry(state, goal, baseline, alpha):
    """The paper's words: the nearest point of the line, found by least squares, mixed with the state itself."""
    line = np.stack([(goal - baseline).numpy()], 1)
    step = np.linalg.lstsq(line, (state - baseline).numpy(), rcond=None)[0]
    nearest = baseline.numpy() + line @ step
    return 1 - np.sum((alpha * nearest + (1 - alpha) * state.numpy() - goal.numpy()) ** 2) / 2


def test_goal_score_equals_paper_and_published_code():
    states, goals, baselines = vectors(500, 1), vectors(500, 2), vectors(500, 3)
    alphas = torch.linspace(0, 1, 500, dtype=torch.float64)
    ours = [
        goal_baseline_reward(s[None], g[None], b[None], float(a)).item()
        for s, g, b, a in zip(states, goals, baselines, alphas, strict=True)
    ]
    for oracle in (by_matrix, by_geometry):
        theirs = [float(oracle(s, g, b, float(a))) for s, g, b, a in zip(states, goals, baselines, alphas, strict=True)]
        np.testing.assert_allclose(ours, theirs, atol=1e-10)
    wrong = [
        float(by_matrix(s, g, b, 1 - float(a))) for s, g, b, a in zip(states, goals, baselines, alphas, strict=True)
    ]
    assert np.abs(np.subtract(ours, wrong)).max() > 0.1


@given(st.integers(0, 2**31), st.floats(0, 1))
def test_goal_scores_best_within_the_range(seed, alpha):
    state, goal, baseline = (v[None] for v in vectors(3, seed))
    value = goal_baseline_reward(state, goal, baseline, alpha).item()
    assert -1 - 1e-9 <= value <= 1 + 1e-9
    assert goal_baseline_reward(goal, goal, baseline, alpha).item() == pytest.approx(1)


def test_goal_score_interpolates_between_cosine_and_projection():
    state, goal, baseline = vectors(40, 4), vectors(40, 5), vectors(40, 6)
    torch.testing.assert_close(goal_baseline_reward(state, goal, baseline, 0), (state * goal).sum(-1))
    across = vectors(40, 7)
    direction = functional.normalize(goal - baseline, dim=-1)
    across -= (across * direction).sum(-1, keepdim=True) * direction
    moved = goal_baseline_reward(state + across, goal, baseline, 1)
    torch.testing.assert_close(moved, goal_baseline_reward(state, goal, baseline, 1))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_goal_reward_is_the_formula_on_clip_embeddings(clip, alpha):
    from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

    items = answers(60)
    model = CLIPModel.from_pretrained(clip).eval()
    processor, tokenizer = AutoImageProcessor.from_pretrained(clip, backend="pil"), AutoTokenizer.from_pretrained(clip)
    with torch.no_grad():
        seen = model.get_image_features(**processor(images=[i.image for i in items], return_tensors="pt")).pooler_output
        prompts = tokenizer(["a red circle", "the photo"], padding=True, return_tensors="pt")
        goal, baseline = functional.normalize(model.get_text_features(**prompts).pooler_output.double(), dim=-1)
    states = functional.normalize(seen.double(), dim=-1)
    expected = [by_geometry(state, goal, baseline, alpha) for state in states]
    reward = load("goal_baseline", model=clip, goal="a red circle", baseline="the photo", alpha=alpha)
    np.testing.assert_allclose(reward.score(items).values["goal_baseline"], expected, atol=1e-5)


def test_prompt_is_the_default_goal(clip):
    items = [answer(seed, prompt="a red circle") for seed in range(5)]
    by_prompt = load("goal_baseline", model=clip, baseline="the photo").score(items)
    by_name = load("goal_baseline", model=clip, goal="a red circle", baseline="the photo").score(items)
    np.testing.assert_array_equal(by_prompt.values["goal_baseline"], by_name.values["goal_baseline"])


@pytest.mark.integration
def test_contrast_is_half_the_published_difference_at_equal_weights(clip):
    items = answers(200)
    prompts = [{"prompt": text} for text in ("two green square", "a red circle")]
    near, far = (raw_cosines(clip, [answer(int(i.id), **t) for i in items], padding=True)[0] for t in prompts)
    reward = load("goal_contrast", model=clip, positive="two green square", negative="a red circle")
    np.testing.assert_allclose(reward.score(items).values["goal_contrast"], (near - far) / 2, atol=1e-5)
    tilted = load("goal_contrast", model=clip, positive="two green square", negative="a red circle", weight=0.8)
    np.testing.assert_allclose(tilted.score(items).values["goal_contrast"], 0.8 * near - 0.2 * far, atol=1e-5)


def test_prompts_equal_to_the_baseline_fail_alone(clip):
    reward = load("goal_baseline", model=clip, baseline="the photo")
    output = reward.score([answer(0), answer(1, prompt="the photo"), answer(2)])
    assert output.status["goal_baseline"] == [Status.OK, Status.ERROR, Status.OK]
    assert output.failures[1]["goal_baseline"].kind == "no_line"


def test_goal_and_baseline_of_equal_embedding_raise(clip):
    """Its tokenizer folds capitals and spaces: every picture would be at its goal."""
    reward = load("goal_baseline", model=clip, baseline=" A red  Circle ")
    output = reward.score([answer(0, prompt="a red circle"), answer(1, prompt="a red square")])
    assert output.status["goal_baseline"] == [Status.ERROR, Status.OK]
    assert output.failures[0]["goal_baseline"].kind == "no_line"
    assert output.values["goal_baseline"][1] < 1
    with pytest.raises(
        RewardError, match="goal 'a red circle' and baseline ' A red  Circle ' have equal embeddings in"
    ):
        load("goal_baseline", model=clip, goal="a red circle", baseline=" A red  Circle ")


def test_invalid_arguments_are_rejected_before_loading():
    for arguments, message in [
        ({"baseline": "x", "alpha": 1.1}, r"alpha is 1.1; it must be in \[0, 1\]"),
        ({"baseline": "x", "alpha": float("nan")}, "alpha is nan"),
        ({"baseline": "x", "goal": "x"}, "goal and baseline are both 'x'"),
    ]:
        with pytest.raises(RewardError, match=message):
            load("goal_baseline", **arguments)
    with pytest.raises(RewardError, match="weight is -1"):
        load("goal_contrast", negative="x", weight=-1)
