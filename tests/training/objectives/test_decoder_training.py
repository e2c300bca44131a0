"""The decoder's losses on a decoder of one parameter, whose gradients are worked out by hand."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmrl.config.algorithms.decoder_turns import PerceptualConfig, RankEConfig, ReconstructionConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.uris import data_uri
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rewards.images.similarity import ReferenceReward
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, ObjectiveInputs
from mmrl.training.objectives.decoder_training import RankE, TruePictureLoss
from mmrl.training.rollouts.true_pictures import TruePictures, true_pictures
from tests.training.token_policy import TokenPolicy

TONES = torch.tensor([0.1, 0.2, 0.4, 0.8])
GAIN, STEADY, SLOPE = 0.5, 0.4, 3.0


class Squares(ReferenceReward):
    """The mean squared difference of pixels in [0, 1]."""

    name, range, direction = "squares", (0.0, 1.0), "lower"

    def compare(self, images, references):
        return (images - references).square().mean((1, 2, 3))

    def finalize(self, value, same):
        return value


class MeanPixel(Reward):
    """The mean pixel in [0, 1]."""

    name, needs, range, differentiable = "brightness", ("text",), (0.0, 1.0), True

    def score_one(self, item):
        return 0.0

    def score_tensor(self, images, batch):
        return images.mean((1, 2, 3))


class WithoutGradient(MeanPixel):
    """The same without a gradient."""

    name, differentiable = "flat", False


class OneGain:
    """A decoder whose picture is a square of one tone: `gain` times that of the first code."""

    def __init__(self):
        self.gain, self.version = nn.Parameter(torch.tensor(GAIN)), 0

    def decode(self, codes):
        return (self.gain * TONES[codes[:, 0]]).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)

    def encode(self, images):
        tones = torch.tensor([[np.asarray(image, np.float32).mean() / 127.5 - 1] for image in images])
        return (tones - TONES).abs().argmin(1, keepdim=True)

    def pixels(self, images, like):
        found = torch.stack([torch.from_numpy(np.asarray(image, np.float32) / 127.5 - 1) for image in images])
        return found.permute(0, 3, 1, 2)

    def last_layer(self):
        return self.gain

    def parameters_to_train(self):
        return {"gain": self.gain}


class OneSlope:
    """A discriminator whose logit is `slope` times the mean pixel."""

    def __init__(self):
        self.slope, self.version = nn.Parameter(torch.tensor(SLOPE)), 0

    def logits(self, pixels):
        return self.slope * pixels.mean((1, 2, 3)).view(-1, 1, 1, 1)

    def parameters_to_train(self):
        return {"slope": self.slope}


NEAR = PerceptualConfig(name=f"{__name__}:Squares")


def sample_of(tone, name="s0"):
    buffer = io.BytesIO()
    Image.fromarray(np.full((2, 2, 3), round((tone + 1) * 127.5), np.uint8)).save(buffer, "PNG")
    return Sample(name, prompt="?", demonstration={"image": data_uri(buffer.getvalue(), "image/png")})


def objective_of(discriminator=True, **settings):
    """Return RankE with all factors 0 but those that are given, its decoder, and its discriminator."""
    off = dict(reconstruction=0.0, adversarial=0.0, consistency=0.0, reward=0.0)
    named = {"discriminator": "judge"} if discriminator else {}
    config = RankEConfig(**(off | {"perceptual": NEAR, "kl": 0.0} | named | settings))
    decoder, judge = OneGain(), OneSlope()
    suite = RewardSuite([(MeanPixel(), 2.0)])
    parts = {"decoder": decoder, "judge": judge}
    return (
        RankE.build(config, ObjectiveInputs(TokenPolicy(), TokenSamplingConfig(), suite, parts=parts)),
        decoder,
        judge,
    )


def batch_of(totals, codes):
    """Rows of two groups of two, with these rewards and first codes; the samples have true pictures."""
    policy = TokenPolicy()
    requests = [RolloutRequest(sample_of(0.4, f"s{group}"), 2, group) for group in range(2)]
    rollout = policy.rollout(requests, 0)
    rollout.token_ids = [[code, 0, 0] for code in codes]
    zeros = torch.zeros(4)
    return MicroBatch(rollout, zeros, torch.ones(4, dtype=torch.bool), torch.zeros(4, 3), totals=torch.tensor(totals))


def gradients(objective, decoder, judge, batch):
    """Return the gradients of the decoder's and the discriminator's parameter after an update's losses."""
    objective.accumulate([batch], 1.0, [0], MetricAccumulator())
    return [None if p.grad is None else p.grad.item() for p in (decoder.gain, judge.slope)]


BEST = batch_of([0.0, 1.0, 3.0, 2.0], [0, 1, 3, 2])  # the best of each group have the codes 1 and 3
BRIGHT = TONES[[1, 3]]


def test_the_reward_of_the_best_pictures_moves_the_decoder_as_worked_out():
    objective, decoder, judge = objective_of(reward=1.0)
    expected = -(2.0 * BRIGHT / 2).mean().item()  # weight 2 of the reward, and half for pixels in [0, 1]
    assert gradients(objective, decoder, judge, BEST) == [pytest.approx(expected), None]


def test_weights_of_two_in_a_group_count_in_the_reward():
    objective, decoder, judge = objective_of(reward=1.0, best=2, best_temperature=1.0)
    heavy = 1 / (1 + np.exp(-1.0))
    weights = 2 * np.array([heavy, 1 - heavy, heavy, 1 - heavy])
    expected = -np.mean(weights * TONES[[1, 0, 3, 2]].numpy())
    assert gradients(objective, decoder, judge, BEST) == [pytest.approx(expected), None]


def test_the_pull_to_the_moving_average_is_that_of_its_distance():
    objective, decoder, judge = objective_of(consistency=10.0)
    assert gradients(objective, decoder, judge, BEST)[0] == 0.0  # the two begin equal
    decoder.gain.grad = None
    objective.load_state_dict({"gain": torch.tensor(STEADY)})
    expected = 10 * (2 * (GAIN - STEADY) * BRIGHT.square() / 4).mean().item()
    assert gradients(objective, decoder, judge, BEST)[0] == pytest.approx(expected, rel=1e-5)


def test_what_the_discriminator_says_moves_the_decoder_and_not_itself():
    objective, decoder, judge = objective_of(adversarial=0.5)
    expected = -0.5 * SLOPE * BRIGHT.mean().item()
    assert gradients(objective, decoder, judge, BEST) == [pytest.approx(expected), None]
    assert judge.slope.requires_grad


def test_true_pictures_teach_both_each_its_own_loss():
    objective, decoder, judge = objective_of(reconstruction=1.0, adversarial=0.7)
    objective._learn_best = lambda *_: None  # the first of the two parts alone
    true, made = round(1.4 * 127.5) / 127.5 - 1, GAIN * 0.4
    near = -0.4 + 2 * (made - true) / 2 * 0.4 / 2  # d |made - true| / d gain, and that of the squares
    realism = -SLOPE * 0.4
    balance = abs(near) / (abs(realism) + 1e-4)
    found = gradients(objective, decoder, judge, BEST)
    assert found[0] == pytest.approx(near + 0.7 * balance * realism, rel=1e-4)
    assert found[1] == pytest.approx(0.5 * made, rel=1e-4)  # the logit of the true one is past its margin


def test_the_stage_before_has_the_same_losses_and_scales_with_its_share():
    decoder, judge = OneGain(), OneSlope()
    config = ReconstructionConfig(perceptual=NEAR)
    inputs = ObjectiveInputs(TokenPolicy(), TokenSamplingConfig(), parts={"decoder": decoder, "judge": judge})
    objective = TruePictureLoss.build(config, inputs)
    assert objective.trained == ("decoder",) and not objective.uses_copies()
    objective.backward(BEST, 0.25, 0, MetricAccumulator())
    true, made = round(1.4 * 127.5) / 127.5 - 1, GAIN * 0.4
    assert decoder.gain.grad.item() == pytest.approx(0.25 * (-0.4 + (made - true) * 0.4 / 2), rel=1e-4)


def test_rewards_are_drawn_by_the_moving_average_which_follows_and_begins_anew():
    objective, decoder, _ = objective_of(steady={"decay": 0.75, "every": 2})
    with torch.no_grad():
        decoder.gain.fill_(1.5)
    with objective.sampling_weights():
        assert decoder.gain.item() == GAIN
    assert decoder.gain.item() == 1.5
    objective.finish_iteration(1)
    assert objective.state_dict()["gain"].item() == GAIN
    objective.finish_iteration(2)
    assert objective.state_dict()["gain"].item() == pytest.approx(0.75 * GAIN + 0.25 * 1.5)
    objective.begin()
    assert objective.state_dict()["gain"].item() == 1.5


def test_rows_that_were_not_scored_are_never_the_best():
    objective, decoder, judge = objective_of(reward=1.0)
    unscored = batch_of([torch.nan, 1.0, torch.nan, torch.nan], [0, 1, 3, 2])
    assert gradients(objective, decoder, judge, unscored)[0] == pytest.approx(-0.2)


def test_parts_are_trained_only_where_a_loss_needs_them():
    assert objective_of()[0].trained == ("policy", "decoder")
    assert objective_of(reconstruction=1.0, adversarial=0.1)[0].trained == ("policy", "decoder", "judge")
    assert objective_of(discriminator=False, adversarial=0.1)[0].trained == ("policy", "decoder")


def test_what_has_no_gradient_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm.reward: flat cannot be differentiated"):
        _with_flat_reward()
    with pytest.raises(ConfigError, match="does not compare a picture with a reference"):
        objective_of(perceptual=PerceptualConfig(name=f"{__name__}:MeanPixel"))


def _with_flat_reward():
    config = RankEConfig(perceptual=NEAR, kl=0.0)
    suite = RewardSuite([(WithoutGradient(), 1.0)])
    inputs = ObjectiveInputs(TokenPolicy(), TokenSamplingConfig(), suite, parts={"decoder": OneGain()})
    RankE.build(config, inputs)


def test_samples_without_a_true_picture_are_named():
    with pytest.raises(DataError, match=r"1 of 2 samples lack a true picture.*'bare'"):
        true_pictures([sample_of(0.0), Sample("bare", prompt="?")])


def test_the_experience_of_true_pictures_has_no_decisions():
    class Prompts:
        def next(self):
            return [sample_of(0.1, f"s{number}") for number in range(5)]

    experience = TruePictures(Prompts(), 2).collect(0, 0.0, None)
    assert [batch.rollout.rows for batch in experience.micro_batches] == [2, 2, 1]
    assert experience.gap == 0.0 and not any(batch.rollout.mask.any() for batch in experience.micro_batches)
