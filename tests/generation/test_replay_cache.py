"""The tape: outermost calls, clones, and generators that stand where they stood."""

from __future__ import annotations

import pytest
import torch

from mmrl.errors import ReplayError
from mmrl.generation.diffusion.replay_cache import CallCache, cache_targets, intercept_calls, replaced_attributes
from tests.generation import tiny_pipelines as tiny


class Parts:
    """Something with a method inside of a method."""

    def __init__(self) -> None:
        self.computed: list[str] = []

    def encode_prompt(self, text: str) -> dict:
        """The outer one."""
        self.computed.append("encode_prompt")
        return {"embeds": self.encode_words(text), "length": len(text)}

    def encode_words(self, text: str) -> torch.Tensor:
        """The inner one."""
        self.computed.append("encode_words")
        return torch.full((2,), float(len(text)))

    def prepare_latents(self, generator: torch.Generator) -> tuple[torch.Tensor]:
        """Uses randomness."""
        self.computed.append("prepare_latents")
        return (torch.randn(2, generator=generator),)


TARGETS = ("encode_prompt", "encode_words", "prepare_latents")


def recorded(parts: Parts) -> tuple[CallCache, torch.Tensor]:
    """A tape of two calls, and what the generator draws afterwards."""
    call_cache, generator = CallCache(), torch.Generator().manual_seed(0)
    with intercept_calls([(parts, name, name) for name in TARGETS], call_cache.recorder([generator])):
        parts.encode_prompt("red")
        parts.prepare_latents(generator)
    return call_cache, torch.randn(3, generator=generator)


def test_outermost_calls_are_replayed_without_computing():
    parts = Parts()
    call_cache, drawn_after = recorded(parts)
    assert [entry.name for entry in call_cache.entries] == ["encode_prompt", "prepare_latents"]
    parts.computed.clear()
    generator = torch.Generator().manual_seed(99)
    with intercept_calls([(parts, name, name) for name in TARGETS], call_cache.replayer([generator])):
        prompt, latents = parts.encode_prompt("another"), parts.prepare_latents(generator)
    assert parts.computed == []
    assert prompt["length"] == 3 and prompt["embeds"].tolist() == [3, 3]
    assert torch.equal(latents[0], call_cache.entries[1].value[0])
    assert torch.equal(torch.randn(3, generator=generator), drawn_after)
    assert parts.encode_prompt("gone")["length"] == 4  # nothing stays patched


def test_replayed_values_may_be_changed_in_place():
    parts = Parts()
    call_cache, _ = recorded(parts)
    for _ in range(2):
        play = call_cache.replayer([])
        call_cache.entries[:] = [type(e)(e.name, e.value, ()) for e in call_cache.entries]
        assert play("encode_prompt", pytest.fail)["embeds"].mul_(5).tolist() == [15, 15]


def test_calls_out_of_order_raise_with_both_names():
    call_cache, _ = recorded(Parts())
    play = call_cache.replayer([torch.Generator()])
    with pytest.raises(
        ReplayError, match=r"entry 0: the rollout made encode_prompt\(\) here, the replay calls prepare_l"
    ):
        play("prepare_latents", pytest.fail)
    play = call_cache.replayer([torch.Generator()])
    play("encode_prompt", pytest.fail)
    play("prepare_latents", pytest.fail)
    with pytest.raises(ReplayError, match="entry 2: the rollout made no further call here"):
        play("prepare_latents", pytest.fail)


def test_failed_calls_leave_the_next_call_outermost():
    class Fails:
        def encode_prompt(self, fail: bool) -> int:
            """Fails on request."""
            if fail:
                raise OSError("no text")
            return 1

    call_cache, owner = CallCache(), Fails()
    with intercept_calls([(owner, "encode_prompt", "encode_prompt")], call_cache.recorder([])):
        with pytest.raises(OSError, match="no text"):
            owner.encode_prompt(True)
        owner.encode_prompt(False)
    assert len(call_cache.entries) == 1


def test_previous_instance_attributes_are_restored():
    module = torch.nn.Linear(1, 1)
    module.forward = hook = lambda x: x + 1  # as accelerate's offloading hooks set it
    with replaced_attributes([(module, "forward", lambda x: x * 10)]):
        assert module(torch.tensor([2.0])).item() == 20
    assert module.forward is hook


@pytest.mark.parametrize("name", ["sd3", "flux", "qwen_image", "wan", "sd15"])
def test_cache_targets_of_a_pipeline(name):
    labels = {label for _, _, label in cache_targets(tiny.build(name))}
    assert {"encode_prompt", "prepare_latents", "text_encoder", "vae.encode"} <= labels
    assert not labels & {"transformer", "unet", "_get_signature_keys", "_get_signature_types"}
