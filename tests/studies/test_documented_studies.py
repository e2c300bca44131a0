"""docs/studies.md: its files load, their arms can be trained, and it has every key."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from mmrl.config.section import Section
from mmrl.studies.runner import StudyOptions, bill
from mmrl.studies.study import BudgetConfig, DecideConfig, SeedsConfig, StudyConfig, SweepConfig, load_study


@pytest.fixture
def page(repository) -> str:
    return (repository / "docs" / "studies.md").read_text(encoding="utf-8")


def test_files_in_the_documentation_load(page, tmp_path):
    blocks = re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```yaml") == 3
    for name, text in blocks:
        (tmp_path / name).write_text(text)
        study = load_study(str(tmp_path / name))
        assert len(bill(study, StudyOptions(root=tmp_path))) == 1 + (len(study.arms) if study.config.recipe else 0)


@pytest.mark.parametrize("section", [StudyConfig, DecideConfig, BudgetConfig, SeedsConfig, SweepConfig])
def test_the_documentation_has_every_key(page, section: type[Section]):
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    words = set(chain.from_iterable(re.findall(r"\w+", code) for code in re.findall(r"`([^`]+)`", prose)))
    assert set(section.model_fields) - words == set()
