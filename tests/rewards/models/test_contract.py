"""The contract of every reward that runs a model, for each network."""

import hashlib
import io
import logging
import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.checks import ShapeError
from mmrl.rewards import RewardError, Status, load
from mmrl.rewards.models.model_reward import ModelReward
from tests.rewards.models.tiny_models import answer, answers, as_tensor, picture, prompt

NAMES = [
    "clip_score",
    "siglip_score",
    "pickscore",
    "hps_v2",
    "hps_v21",
    "aesthetic",
    "image_reward",
    "goal_baseline",
    "goal_contrast",
    "transported_clip",
]


@pytest.fixture(scope="module")
def rewards(clip, siglip, hps, aesthetic, image_reward) -> dict:
    arguments = {
        "clip_score": {"model": clip},
        "siglip_score": {"model": siglip},
        "pickscore": {"model": clip},
        "hps_v2": hps,
        "hps_v21": hps,
        "aesthetic": aesthetic,
        "image_reward": image_reward,
        "goal_baseline": {"model": clip, "baseline": "a photo"},
        "goal_contrast": {"model": clip, "negative": "two red"},
        "transported_clip": {"model": clip, "real": [(prompt(row), [picture(row)]) for row in range(9)]},
    }
    return {name: load(name, **arguments[name]) for name in NAMES}


@pytest.fixture(params=NAMES)
def reward(request, rewards):
    return rewards[request.param]


def test_scores_are_independent_of_batch_and_call(reward):
    items = answers(9)
    together = reward.score(items)
    assert together.status[reward.name] == [Status.OK] * 9
    alone = np.concatenate([reward.score([item]).values[reward.name] for item in items])
    np.testing.assert_allclose(together.values[reward.name], alone, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(together.values[reward.name], reward.score(items).values[reward.name])
    order = np.random.default_rng(0).permutation(9)
    shuffled = reward.score([items[row] for row in order]).values[reward.name]
    np.testing.assert_allclose(shuffled, together.values[reward.name][order], rtol=1e-5, atol=1e-5)


def test_scores_depend_on_image_and_prompt(reward):
    one, other = answer(3, prompt="a red circle"), answer(3, prompt="two blue square")
    values = reward.score([one, other, answer(3, prompt="a red circle", image=picture(8))]).values[reward.name]
    assert abs(values[0] - values[2]) > 1e-4
    assert (abs(values[0] - values[1]) > 1e-4) == (reward.name != "aesthetic")


def test_scores_are_in_the_declared_range(reward):
    low, high = reward.range
    values = reward.score(answers(32)).values[reward.name]
    assert (values >= low).all() and (values <= high).all() and len(set(values.tolist())) > 8


def test_tensors_score_close_to_images_with_gradients(reward):
    """Within 0.01 of a cosine, or about a hundredth of what tells pictures apart; a step uphill raises the score."""
    items = [answer(seed, image=picture(seed, 40, 52)) for seed in range(6)]
    images = torch.stack([as_tensor(item.image) for item in items]).requires_grad_()
    scores = reward.score_tensor(images, items)
    assert scores.shape == (6,) and scores.dtype == torch.float32
    unit = {"pickscore": 100, "aesthetic": 3, "image_reward": 12}.get(reward.name, 1)
    np.testing.assert_allclose(scores.detach(), reward.score(items).values[reward.name], atol=0.01 * unit)
    scores.sum().backward()
    slope = images.grad.flatten(1).norm(dim=1)
    where = slope > 0  # CLIPScore is flat where the cosine is negative
    moved = (images + 0.02 * images.grad / slope.clamp(min=1e-12)[:, None, None, None]).detach()
    risen = reward.score_tensor(moved, items) - scores
    assert where.sum() >= 2 and (risen[where] > 0).all() and (risen[~where] == 0).all()


def test_gradients_are_separate_per_image_and_absent_for_parameters(reward):
    items = answers(3)
    images = torch.rand(3, 3, 33, 47, requires_grad=True)
    reward.score_tensor(images, items)[1].backward()
    assert (images.grad[0] == 0).all() and (images.grad[2] == 0).all()
    assert not any(weights.requires_grad or weights.grad is not None for weights in reward.network.parameters())


def test_tensors_of_another_shape_raise(reward):
    for shape in [(2, 3, 8, 8), (3, 1, 8, 8), (3, 8, 8)]:
        with pytest.raises(ShapeError, match="images: expected"):
            reward.score_tensor(torch.rand(shape), answers(3))


def test_gradients_work_after_scoring_in_inference_mode(reward):
    """Tensors made in inference mode may not be cached and used for gradients."""
    item = answer(1)
    reward.score([item])
    reward.score_tensor(torch.rand(1, 3, 40, 40, requires_grad=True), [item]).sum().backward()


def test_invalid_inputs_have_a_status_and_leave_other_rows_alone(reward):
    long = Image.new("RGB", (1, 30_000))
    broken = Image.open(io.BytesIO(_png(picture(0))[:500]))
    bomb = Image.new("1", (1, 1))
    bomb._size = (2**14, 2**14)
    odd = [None, long, bomb, broken, np.zeros((8, 8, 3), np.uint8), "picture.png"]
    items = [answer(0)] + [answer(n, image=image) for n, image in enumerate(odd)] + [answer(1)]
    output = reward.score(items)
    values, status = output.values[reward.name], output.status[reward.name]
    bounded = math.isfinite(reward.range[0])
    malformed = Status.INVALID if bounded else Status.ERROR
    assert status == [Status.OK, Status.ERROR, malformed, malformed, *[Status.ERROR] * 3, Status.OK]
    assert np.isnan(values[[1, 4, 5, 6]]).all()
    if bounded:
        np.testing.assert_array_equal(values[2:4], np.float32([reward.range[0]] * 2))
    good = np.concatenate([reward.score([item]).values[reward.name] for item in (items[0], items[-1])])
    np.testing.assert_allclose(values[[0, -1]], good, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "LA"])
def test_images_of_every_mode_are_scored(reward, mode):
    output = reward.score([answer(2, image=picture(2).convert(mode)), answer(2, image=Image.new("RGB", (1, 1)))])
    assert output.status[reward.name] == [Status.OK, Status.OK]


@pytest.mark.parametrize(
    "text",
    ["", " ", "\x00", "ﬁﬂ 🎨 红色的圆 مربع", "<|endoftext|>" * 50, "[ENC] [DEC] [SEP]", "a " * 10**6, "x" * 10**6],
)
def test_every_prompt_is_scored(reward, text):
    output = reward.score([answer(2, prompt=text)])
    assert output.status[reward.name] == [Status.OK]


def test_prompts_outside_unicode_fail_alone(reward):
    output = reward.score([answer(2), answer(2, prompt="\ud800")])
    assert output.status[reward.name][0] is Status.OK
    assert output.status[reward.name][1] in (Status.OK, Status.ERROR)


def test_long_prompts_are_truncated_with_one_warning(reward, caplog):
    if reward.name == "aesthetic":
        pytest.skip("reads no prompt")
    truncator = (reward if reward.name == "image_reward" else reward.encoder)._truncator
    truncator._warned = False
    long = prompt(0, 200)
    with caplog.at_level(logging.WARNING):
        values = reward.score([answer(0, prompt=long), answer(0, prompt=long + " red red")]).values[reward.name]
        reward.score([answer(0, prompt=long)])
    assert values[0] == values[1]
    messages = [record.getMessage() for record in caplog.records if "of a prompt" in record.getMessage()]
    assert messages == [
        f"{reward.name} reads {truncator.tokens} tokens of a prompt; longer prompts are truncated. Logged once."
    ]


def test_cards_name_weights_with_digests(reward):
    files = reward.spec.weights
    assert files and len(files) == (2 if reward.name == "aesthetic" else 1)
    for file in files:
        assert file.sha256 == hashlib.sha256(Path(file.path).read_bytes()).hexdigest()
    needs = () if reward.name == "transported_clip" else ("image",)  # videos, too
    assert reward.spec.differentiable and reward.spec.needs == needs and reward.spec.source and reward.spec.licence
    assert reward.fingerprint() == reward.fingerprint()


def test_reward_moves_between_devices_in_place(reward):
    before = reward.score(answers(2)).values[reward.name]
    assert reward.to("cpu") is reward and reward.device == torch.device("cpu")
    np.testing.assert_array_equal(reward.score(answers(2)).values[reward.name], before)
    assert all(not weights.requires_grad for weights in reward.network.parameters()) and not reward.network.training
    with pytest.raises(RewardError, match="device is 'tpu9000'"):
        reward.to("tpu9000")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_scores_equal_cpu_scores(reward):
    items = answers(6)
    before = reward.score(items).values[reward.name]
    try:
        there = reward.to("cuda").score(items).values[reward.name]
        scores = reward.score_tensor(torch.rand(6, 3, 40, 40, device="cuda", requires_grad=True), items)
        assert scores.is_cuda and reward.device.type == "cuda"
    finally:
        reward.to("cpu")
    np.testing.assert_allclose(there, before, rtol=2e-3, atol=2e-3)


@pytest.mark.integration
def test_half_precision_is_close_and_scores_are_float32(clip, hps, image_reward):
    for name, arguments in (("clip_score", {"model": clip}), ("hps_v2", hps), ("image_reward", image_reward)):
        items = answers(4)
        whole = load(name, **arguments).score(items).values[name]
        half = load(name, **arguments, dtype="bfloat16")
        assert {weights.dtype for weights in half.network.parameters()} <= {torch.bfloat16, torch.float32}
        np.testing.assert_allclose(half.score(items).values[name], whole, rtol=0.1, atol=0.05)
        assert half.score_tensor(torch.rand(4, 3, 40, 40), items).dtype == torch.float32


def test_repeated_prompts_are_encoded_once(clip):
    reward = load("clip_score", model=clip)
    seen = []
    features = reward.encoder.text_features
    reward.encoder.text_features = lambda texts: seen.append(list(texts)) or features(texts)
    reward.score([answer(n, prompt=text) for n, text in enumerate(["red", "blue", "red", "red"])])
    assert seen == [["red", "blue"]]


def test_concurrent_threads_share_one_network_safely():
    """A suite may call from several; the tokenizers of transformers are not made for that."""
    inside, most, start = [], [], threading.Barrier(4)

    class Slow(ModelReward):
        """Watches itself."""

        name, range, source = "slow", (0.0, 1.0), "none"

        def __init__(self) -> None:
            super().__init__(torch.nn.Linear(1, 1), [], "cpu")

        def score_images(self, pictures, items):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()
            return torch.zeros(len(items))

    reward = Slow()

    def call(seed):
        start.wait()
        reward.score_batch([answer(seed)])

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
