"""The experiment of OneReward: pairs of a generator's pictures, judges that read more or less, and a short run."""

from __future__ import annotations

import pytest

from mmrl.data.media.decode import load_image
from mmrl_shapeworld import mask_tasks, queried_judges
from mmrl_shapeworld.inpainting import Hole
from mmrl_shapeworld.mask_tasks import CRITERIA, judge_mask


@pytest.fixture(scope="module")
def few():
    """Pairs of sixteen samples in the place of all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queried_judges, "JUDGED", 16)
        patch.setattr(queried_judges, "UNSEEN", 4)
        queried_judges.judged_pairs.cache_clear()
        yield queried_judges.judged_pairs("masks-train", 16)
    queried_judges.judged_pairs.cache_clear()


@pytest.mark.slow
def test_pairs_are_labelled_by_one_criterion_of_their_task(few):
    holes = {sample.id: Hole.from_dict(sample.answer) for sample in mask_tasks.samples("masks-train")[:16]}
    assert {pair.task for pair in few} == {"fill", "removal"} and len({pair.id for pair in few}) == len(few)
    for pair in few:
        criterion = pair.metadata["criterion"]
        better, worse = (
            judge_mask(load_image(each), holes[pair.metadata["of"]]).by(criterion)
            for each in (pair.chosen, pair.rejected)
        )
        assert criterion in CRITERIA[pair.task] and better - worse >= queried_judges.LEAST[criterion]
        assert pair.answer is None  # the rules' truth does not go with a pair


@pytest.mark.integration
def test_judges_differ_in_what_they_read_alone(few, tmp_path):
    folders = {reads: tmp_path / reads for reads in queried_judges.READS}
    for folder in folders.values():
        folder.mkdir()
    judges = {reads: queried_judges.trained_judge(3, reads, 16, 5, folder) for reads, folder in folders.items()}
    texts = {reads: (folder / "pairs.jsonl").read_text() for reads, folder in folders.items()}
    assert len(set(texts.values())) == 1
    assert all(0 <= judge.quality.accuracy["overall"] <= 1 for judge in judges.values())
    seen, unseen = ((folders["query"] / f"{name}.jsonl").read_text() for name in ("pairs", "unseen"))
    assert "masks-train-0012" in unseen and "masks-train-0012" not in seen


@pytest.mark.slow
def test_a_run_is_measured_by_the_rules_of_each_task(few):
    found = queried_judges.mask_tasks_by_judge(
        3, "masks-development", "query", pairs=16, judge_steps=5, iterations=1, prompts=6
    )
    began = queried_judges.mask_tasks_by_judge(3, "masks-development", "none", prompts=6)
    assert {name: len(values) for name, values in found.items()} == {
        "fill_iou": 3, "alignment": 3, "residue": 3, "done": 6, "kept": 6, "judged": 1,
    }  # fmt: skip
    assert {name: len(values) for name, values in began.items()} == {name: len(each) for name, each in found.items()}
    assert all(0 <= value <= 1 for values in found.values() for value in values)


@pytest.mark.integration
def test_a_judge_is_measured_on_pairs_of_another_split(few):
    found = queried_judges.judge_accuracy(3, "masks-development", "subject", pairs=16, judge_steps=5, prompts=4)
    assert list(found) == ["accuracy"] and 0 <= found["accuracy"][0] <= 1
