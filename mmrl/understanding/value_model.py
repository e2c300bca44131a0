"""`ValueModel`: a critic from a vision-language model, with one output in the place of its vocabulary.

Its prompts, media and packing are those of replay (`vlm_replay`), so an update with a critic computes each prompt once,
too.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmrl.config.policy import VLMConfig
from mmrl.errors import ConfigError
from mmrl.finetuning.parameter_file import read_parameters, save_parameters
from mmrl.finetuning.trainable import NothingTrained, train_in_float32
from mmrl.rollout import Rollout
from mmrl.tokens.log_probs import linear_head
from mmrl.tokens.token_model import TokenModel
from mmrl.understanding.vlm import VLM, load_vlm, lora_of_parts, part_of, trained_parts
from mmrl.understanding.vlm_replay import (
    TokenRecording,
    bucket_logits,
    pack_answers,
    pack_logits,
    stackable_answers,
    trajectory_logits,
)

FILE = "value_model.safetensors"


class ValueModel(TokenModel):
    """A critic: before each token of an answer, it estimates the reward that is still to come.

    The estimate is a linear function of the last hidden state of the token before. It is 0 until the first update.
    """

    config: VLMConfig

    def __init__(self, vlm: VLM, config: VLMConfig) -> None:
        """Replace the output layer of a loaded model, and train what `config` says.

        Raises:
            ConfigError: the model's outputs are not just the product with its output layer.
        """
        super().__init__(vlm.model, config, vlm.unshared_reason)
        self.vlm = vlm
        old = linear_head(vlm.model)
        if old is None:
            raise ConfigError(
                f"{type(vlm.model).__name__} changes its outputs after the output layer, which values cannot take: "
                "choose another model for the critic"
            )
        self._train(NothingTrained(vlm.model))
        if config.train == "lora":
            lora_of_parts(vlm.model, config.lora, trained_parts(config))
        else:
            for name, parameter in vlm.model.named_parameters():
                parameter.requires_grad_(part_of(name) in trained_parts(config))
        head = nn.Linear(old.in_features, 1).to(vlm.device, vlm.model.dtype)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        vlm.model.set_output_embeddings(head)
        train_in_float32(vlm.model)

    @classmethod
    def from_config(cls, config: VLMConfig) -> ValueModel:
        """Load the model that a configuration names.

        Raises:
            ConfigError: it cannot be loaded, or cannot be a critic.
        """
        return cls(load_vlm(config), config)

    def values(self, rollout: Rollout) -> Tensor:
        """Return [B, T] float32: the estimate before each decision, with a graph if gradients are enabled.

        It is 0 outside of the rollout's mask.
        """
        with self._scoring() as recomputes:
            if self.attention.shares_prompts:
                found = _packed_values(self.vlm, rollout.recording)
            else:
                found = _row_values(self.vlm, rollout.recording, recomputes or self.vlm.extends_token_by_token)
        return found.where(rollout.mask.to(found.device), 0.0)

    def save(self, folder: Path) -> None:
        """Write the trained parameters by their names in the model, the output layer among them."""
        save_parameters(self.parameters_to_train(), folder / FILE)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote.

        Raises:
            ConfigError: the file has parameters of other names.
        """
        read_parameters(self.parameters_to_train(), folder / FILE, "critic")


def _packed_values(vlm: VLM, recording: TokenRecording) -> Tensor:
    """Return [B, T] values, computed with each prompt once for all of its answers."""
    tokens = recording.tokens.to(vlm.device)
    rows, steps, values = [], [], []
    for prompts, members, prompt_of in stackable_answers(recording):
        pack = pack_answers(vlm, prompts, prompt_of, [recording.continuation(row, tokens) for row in members], members)
        rows.append(pack.rows)
        steps.append(pack.step_indices)
        values.append(pack_logits(vlm, pack)[:, 0].float())
    empty = torch.zeros(tokens.shape, device=vlm.device)
    return empty.index_put((torch.cat(rows), torch.cat(steps)), torch.cat(values))


def _row_values(vlm: VLM, recording: TokenRecording, separate_prompts: bool) -> Tensor:
    """Return [B, T] values, computed in batches of rows of similar length."""
    tokens = recording.tokens.to(vlm.device)
    width = tokens.shape[1]
    found: dict[int, Tensor] = {}
    if recording.has_observations:
        for row, outputs in trajectory_logits(vlm, recording):
            found[row] = F.pad(outputs[:, 0].float(), (0, width - len(outputs)))
    else:
        for bucket, outputs in bucket_logits(vlm, recording, tokens, separate_prompts):
            padded = F.pad(outputs[..., 0].float(), (0, width - outputs.shape[1]))
            found |= dict(zip(bucket.tolist(), padded, strict=True))
    return torch.stack([found[row] for row in range(len(tokens))])
