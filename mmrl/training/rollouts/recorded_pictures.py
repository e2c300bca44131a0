"""Pictures in the data as answers to their prompts, which rewards score as they would a policy's own.

answers = recorded_pictures(policy, samples, count=2)  # checks that every sample has two
rollout = answers.rollout(requests, seed=0)            # ends in the encoded pictures; nothing is sampled
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.policy import Capability, LatentInitPolicy
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.seeds import fold_in
from mmrl.training.rollouts.offline import ImageAnswerReader, OfflineAnswer


@dataclass(frozen=True)
class RecordedPictures:
    """A data set in the place of a policy: the answers to a prompt are pictures of its sample's `demonstration`."""

    read: ImageAnswerReader

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the policy that learns from the pictures."""
        return self.read.policy.capabilities

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Return a rollout of n pictures of each request's sample, drawn without replacement."""
        answers: list[OfflineAnswer] = []
        for number, request in enumerate(requests):
            pictures = self.read.demonstrations(request.sample)
            order = np.random.default_rng(fold_in(seed, number)).permutation(len(pictures))
            answers += [(request.sample, pictures[place], request.group) for place in order[: request.n]]
        return self.read(answers)


def recorded_pictures(policy: LatentInitPolicy, samples: Sequence[Sample], count: int) -> RecordedPictures:
    """Return the pictures of samples that have `count` of them each, or more.

    Raises:
        DataError: samples have fewer; the message has their number and the first one's id.
        UnsupportedError: the policy's model has no image encoder.
    """
    read = ImageAnswerReader(policy)
    lacking = [sample.id for sample in samples if len(read.demonstrations(sample)) < count]
    if lacking:
        raise DataError(
            f"{len(lacking)} of {len(samples)} samples have fewer than {count} pictures (data.group_size) as "
            f'"demonstration": [{{"image": "its path"}}, ...]; the first is {lacking[0]!r}'
        )
    return RecordedPictures(read)
