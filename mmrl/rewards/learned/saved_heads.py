"""`SavedHeads`: the part of a reward that learns during a run which is saved with each checkpoint."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mmrl.nested_state import state_of_part
from mmrl.rewards.core.reward_errors import RewardError

if TYPE_CHECKING:
    from mmrl.rewards.learned.score_head import ScoreHead


class SavedHeads:
    """A reward whose heads learn during a run: they are saved with each checkpoint, as safetensors in base64.

    It stands before the reward of a folder among the bases of a class; `learn` counts iterations in `_learnt`.
    """

    name: ClassVar[str]
    scheduled: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    heads: Sequence[ScoreHead]
    _learnt: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the heads, and the number of iterations that they learnt from."""
        from safetensors.torch import save

        tensors = {
            f"{number}.{name}": value.detach().cpu().contiguous()
            for number, head in enumerate(self.heads)
            for name, value in head.state_dict().items()
        }
        return {"learnt": self._learnt, "heads": base64.b64encode(save(tensors)).decode()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned; without one the heads stay those of the folder.

        Raises:
            RewardError: it is of other heads.
        """
        if not state:
            return
        from safetensors import SafetensorError
        from safetensors.torch import load as read

        try:
            tensors = read(base64.b64decode(state["heads"]))
            for number, head in enumerate(self.heads):
                head.load_state_dict(state_of_part(tensors, f"{number}."))
        except (KeyError, ValueError, RuntimeError, SafetensorError) as err:
            raise RewardError(f"{self.name}: the saved heads do not fit those of the model's folder: {err}") from None
        self._learnt = int(state["learnt"])
