"""The quality of retrieval: the NDCG of all that the searches of an episode found."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence


def ndcg(
    found: Sequence[Hashable],  # of all searches, the best result of the first one first
    relevant: Collection[Hashable],
) -> float:
    """Return the normalised discounted cumulative gain in [0, 1] (Järvelin and Kekäläinen, 2002).

    The sum of 1 / log2(rank + 1) over the relevant results, over that of a ranking that begins with them. A result that
    was found before counts once, so that a search for the same again neither gains nor costs a rank.

    >>> ndcg(["a", "b", "b", "c"], {"a", "c"}) == (1 + 1 / math.log2(4)) / (1 + 1 / math.log2(3))
    True
    >>> ndcg([], {"a"})
    0.0
    """
    wanted = set(relevant)
    if not wanted:
        return 1.0
    gain = sum(1 / math.log2(rank + 1) for rank, each in enumerate(dict.fromkeys(found), start=1) if each in wanted)
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, len(wanted) + 1))
