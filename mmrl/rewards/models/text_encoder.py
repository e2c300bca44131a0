"""`TextEncoder`: a frozen network of transformers that embeds a text as the mean of its last hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmrl.rewards.models.model_files import ResolvedFile, load_pretrained, load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor


class TextEncoder:
    """A text encoder, or a language model, that is not trained.

    A text that is too long for it loses its beginning, since an answer ends with what matters.
    """

    def __init__(self, model: str, revision: str | None = None, device: str = "cpu") -> None:
        """
        Args:
            model: a folder or a hub id.
            revision: of the hub repository.
            device: where it computes.

        Raises:
            RewardError: there is no such model.
        """
        import torch
        from transformers import AutoModel

        self._tokenizer = load_tokenizer(model, revision)
        self.files: tuple[ResolvedFile, ...]
        network, self.files = load_pretrained(AutoModel, model, revision, torch.float32)
        network = network.get_encoder() if network.config.is_encoder_decoder else network
        self.network: Any = network.to(device).eval().requires_grad_(False)
        config = getattr(network.config, "text_config", network.config)
        longest = getattr(config, "max_position_embeddings", self._tokenizer.model_max_length)
        self._longest = min(self._tokenizer.model_max_length, longest)

    def embed(self, texts: Sequence[str]) -> Tensor:  # [B, D] float32
        """Return unit vectors, without gradients; 0 for an empty text. Equal texts are encoded once."""
        import torch
        from torch.nn.functional import normalize
        from torch.nn.utils.rnn import pad_sequence

        distinct = list(dict.fromkeys(texts))
        place = {text: row for row, text in enumerate(distinct)}
        encoded = [self._tokenizer(text, verbose=False)["input_ids"][-self._longest :] for text in distinct]
        device = next(self.network.parameters()).device
        ids = pad_sequence([torch.tensor(row or [0]) for row in encoded], batch_first=True).to(device)
        mask = pad_sequence([torch.ones(max(1, len(row)), dtype=torch.long) for row in encoded], batch_first=True)
        mask = mask.to(device)
        with torch.no_grad():
            states = self.network(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        total = (states * mask[..., None]).sum(1)
        vectors = normalize(total, dim=-1)
        vectors = vectors * torch.tensor([[float(bool(row))] for row in encoded], device=device)
        return vectors[[place[text] for text in texts]]
