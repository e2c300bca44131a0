"""The card of a reward model as a Markdown parser reads it: a whole table, and paragraphs beside it."""

from __future__ import annotations

import pytest
from markdown import markdown

from mmrl.config.reward_model import RewardModelConfig
from mmrl.rewards.learned.reward_folder import RewardQuality, card_text


@pytest.mark.parametrize("thirds", [(0.5, 0.75, 1.0), (0.5,)])
def test_table_has_all_columns_and_ends_before_the_text(thirds):
    config = RewardModelConfig.model_validate(
        {"name": "taste", "data": {"path": "a", "validation": "b"}, "encoder": {"model": "m"}}
    )
    quality = RewardQuality(
        accuracy={"quality": 0.75},
        calibration={"quality": 0.125},
        by_gap={"quality": thirds},
        rank_correlation=(0.5,) * len(config.axes),
        notes={"flipped labels": 0.25},
    )
    page = markdown(card_text(config, 8, quality), extensions=["tables"])
    table = page[page.index("<tbody>") : page.index("</tbody>")]
    assert table.count("<td>") == 6 and "0.125" in table[table.rindex("<td>") :]
    assert page.count("<p>Rank correlation") == len(config.axes) and "<p>flipped labels: 25.0%.</p>" in page
