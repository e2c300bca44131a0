"""docs/rewards.md lists every reward that ships, as the registry knows it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mmrl.rewards import available, reward_class, spec_of
from mmrl.rewards.core.registry import BUILT_IN
from tools.reward_table import markdown_table

START, END = "<!-- table -->\n", "<!-- /table -->"


def test_rewards_page_lists_every_built_in_reward(repository):
    page = repository / "docs/rewards.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    written, _, after = rest.partition(END)
    table = markdown_table([name for name in available() if name in BUILT_IN or name.startswith("shapeworld")])
    if os.environ.get("MMRL_WRITE_DOCS"):
        page.write_text(f"{before}{START}{table}{END}{after}", encoding="utf-8")
        written = table
    assert written == table
    assert len(table.splitlines()) == len(BUILT_IN) + 9 + 2


def test_cards_state_summary_source_and_licence():
    for name in BUILT_IN:
        card = spec_of(reward_class(name))
        assert card.name == name
        assert 10 < len(card.summary) <= 130 and card.summary.endswith("."), f"{name}: {card.summary!r}"
        assert card.source and card.licence and card.range[0] < card.range[1], name


@pytest.mark.integration
def test_rewards_table_imports_no_torch(repository):
    code = (
        "from tools.reward_table import markdown_table; import sys; markdown_table(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=repository)
