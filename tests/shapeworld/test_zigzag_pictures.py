"""Pictures with and without a zigzag, and the pairs that it is learnt from."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl_shapeworld.zigzag_pictures import zigzag_pictures


@pytest.mark.integration
def test_arms_share_their_noise_and_pairs_their_beginning():
    plain, again, refined = (zigzag_pictures(3, "development", each, steps=3, prompts=6) for each in (0, 0, 1))
    assert plain == again
    assert all(len(values) == 6 for values in (*plain.values(), *refined.values()))
    for values in (plain, refined):
        assert np.allclose(np.abs(values["gain"]), values["gap"])
        assert all(0 <= each <= 1 for each in values["total"]) and set(values["strict"]) <= {0.0, 1.0}
    assert plain["total"] != refined["total"] and plain["gain"] != refined["gain"]
