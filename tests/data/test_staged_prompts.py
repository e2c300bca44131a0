"""Stages come one after another, in their shares of training, and resume exactly."""

from __future__ import annotations

import json

import pytest

from mmrl.data.sample import Sample
from mmrl.data.staged_prompts import StagedSampler
from mmrl.errors import DataError

SAMPLES = [Sample(f"{stage}-{n}", prompt="x", metadata={"stage": stage}) for stage in (1, 2, 5) for n in range(6)]


def stages(sampler: StagedSampler, count: int) -> list[str]:
    return ["".join(sorted({sample.id[0] for sample in sampler.next()})) for _ in range(count)]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((), "111222555555"), ((1, 1, 2.5), "112255555555"), ((4, 4, 1), "111122225555")],
)
def test_stages_get_their_shares_and_the_last_one_goes_on(shares, expected):
    assert "".join(stages(StagedSampler(SAMPLES, 2, 0, 9, shares), 12)) == expected


def test_a_batch_is_of_one_stage_and_more_is_of_the_same():
    sampler = StagedSampler(SAMPLES, 4, 0, 3)
    batch = sampler.next()
    assert len({sample.id for sample in [*batch, *sampler.more(9)]}) == 6
    assert sampler.metrics() == {"prompts/stage": 0.0}
    assert sampler.sample("5-3").id == "5-3" and sampler.sample("1-0").id == "1-0"


def test_it_resumes_exactly():
    first = StagedSampler(SAMPLES, 2, 7, 9)
    for _ in range(4):
        first.next()
    state = json.loads(json.dumps(first.state_dict()))
    second = StagedSampler(SAMPLES, 2, 7, 9)
    second.load_state_dict(state)
    assert [[s.id for s in second.next()] for _ in range(6)] == [[s.id for s in first.next()] for _ in range(6)]
    with pytest.raises(DataError, match="not as many"):
        StagedSampler(SAMPLES[:6], 2, 7, 9).load_state_dict(state)


def test_mistakes_are_errors():
    with pytest.raises(DataError, match=r"sample 'x': metadata\.stage is None"):
        StagedSampler([*SAMPLES, Sample("x", prompt="x")], 2, 0, 9)
    with pytest.raises(DataError, match="there are 2, and the samples have 3 stages"):
        StagedSampler(SAMPLES, 2, 0, 9, (1, 1))
    with pytest.raises(DataError, match="fewer than the 7 groups"):
        StagedSampler(SAMPLES, 7, 0, 9)
    with pytest.raises(DataError, match="no sample 'y'"):
        StagedSampler(SAMPLES, 2, 0, 9).sample("y")
