"""Heads that learn during a run, as text for a checkpoint: safetensors in base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmrl.nested_state import state_of_part
from mmrl.rewards.core.reward_errors import RewardError

if TYPE_CHECKING:
    from mmrl.rewards.learned.score_head import ScoreHead


def heads_as_text(heads: Sequence[ScoreHead]) -> str:
    """Return the parameters of heads."""
    from safetensors.torch import save

    tensors = {
        f"{number}.{name}": value.detach().cpu().contiguous()
        for number, head in enumerate(heads)
        for name, value in head.state_dict().items()
    }
    return base64.b64encode(save(tensors)).decode()


def load_heads(heads: Sequence[ScoreHead], state: Mapping[str, Any], name: str) -> None:
    """Restore the parameters that `heads_as_text` returned, from the key `heads`; `name` is a reward's, for messages.

    Raises:
        RewardError: they are of other heads.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as read

    try:
        tensors = read(base64.b64decode(state["heads"]))
        for number, head in enumerate(heads):
            head.load_state_dict(state_of_part(tensors, f"{number}."))
    except (KeyError, ValueError, RuntimeError, SafetensorError) as err:
        raise RewardError(f"{name}: the saved heads do not fit those of the model's folder: {err}") from None
