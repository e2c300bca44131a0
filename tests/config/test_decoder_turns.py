"""Settings of a trained decoder that are refused before a model is loaded, by key."""

from __future__ import annotations

import pytest

from mmrl.build.config_checks import check
from mmrl.config.loading.load import load_config
from mmrl.errors import ConfigError

DECODER = "models={decoder: {head: pixels, train: full}}"
BOTH = "models={decoder: {head: pixels, train: full}, judge: {head: discriminator, train: full}}"
RANKE = "algorithm={name: ranke}"


def test_what_works_is_accepted():
    check(load_config("shapes-ar", [DECODER, RANKE]))
    check(load_config("shapes-ar", [BOTH, "algorithm={name: ranke, discriminator: judge}"]))
    staged = "stages=[{iterations: 2, algorithm: {name: reconstruction}}]"
    check(load_config("shapes-ar", [DECODER, staged]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([RANKE], r"algorithm.decoder: models has no decoder with head: pixels \(none has\)"),
        ([DECODER], "models.decoder.head: no algorithm trains decoder"),
        ([DECODER, "algorithm={name: ranke, decoder: other}"], r"has no other with head: pixels \(decoder\)"),
        ([BOTH, "algorithm={name: ranke, discriminator: decoder}"], r"no decoder with head: discriminator \(judge\)"),
        ([DECODER, RANKE, "data.replay={name: success}"], "data.replay: ranke compares the pictures"),
        ([DECODER, "algorithm={name: ranke, best: 9}"], "algorithm.best: 9 of a group of 8"),
        ([DECODER, RANKE, "policy.train=lora"], "policy.train: lora saves no decoder"),
        ([DECODER, RANKE, "policy.dtype=float16"], "float16 one scale for all"),
        ([DECODER, RANKE, "data.micro_batch=12", "training.updates=2"], "12 rows cut a group of 8"),
        (
            [BOTH, "algorithm={name: ranke, discriminator: judge, reconstruction: 0}"],
            "algorithm.reconstruction: the discriminator learns with it",
        ),
        (["models={decoder: {head: pixels}}"], "is of the policy's own codec: set train to full"),
        (["models={decoder: {head: pixels, train: full, of: policy}}"], "and leave of out"),
        (["models={decoder: {head: pixels, train: full, width: 8}}"], "width of a discriminator alone"),
        (["models={other: {model: shapeworld}}"], "no models beside them but the decoder of their codec"),
    ],
)
def test_what_cannot_work_is_refused_by_key(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-ar", overrides))


def test_other_policies_have_no_decoder_of_codes():
    with pytest.raises(ConfigError, match=r"algorithm.name: ranke trains the decoder of image tokens"):
        check(load_config("shapes-reasoning", [DECODER, RANKE]))
