"""The rule for what the rows of a group start with, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from mmrl.components import Registry
from mmrl.config.section import Section, registered
from mmrl.errors import ConfigError

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

_RULES = "mmrl.training.rollouts"
STARTS: Registry[Any] = Registry(
    "mmrl.starts",
    "start rule",
    {
        "solution_hints": f"{_RULES}.hint_rules:SolutionHints",
        "knowledge_points": f"{_RULES}.hint_rules:KnowledgePoints",
        "aid_contrast": f"{_RULES}.contrast_rule:AidContrast",
        "token_budgets": f"{_RULES}.budget_rule:TokenBudgets",
        "rethinking": f"{_RULES}.rethinking:Rethinking",
        "rephrasing": f"{_RULES}.rephrasing_rule:Rephrasing",
        "partial_solutions": f"{_RULES}.partial_solutions:PartialSolutions",
        "tree_search": f"{_RULES}.tree_search:TreeSearch",
    },
    base=f"{_RULES}.start_rules:StartRule",
)
"""The start rules by name; packages add theirs in the entry-point group `mmrl.starts`."""


class StartsConfig(Section):
    """A start rule by name, with its settings."""

    name: Annotated[str, registered(STARTS)]
    """`solution_hints`, `knowledge_points`, `aid_contrast`, `token_budgets`, `rethinking`, `rephrasing`,
    `partial_solutions`, `tree_search`, an installed rule, or `path/to/file.py:Class` for one of your own."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the rule's constructor."""

    def rule(self) -> Any:
        """Return the rule, a `mmrl.training.rollouts.start_rules.StartRule`.

        Raises:
            ConfigError: it cannot be imported, or does not take these arguments.
        """
        return STARTS.build(self.name, self.args, "data.starts")

    def errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each setting of `config` that cannot work with this rule."""
        try:
            yield from self.rule().errors(config)
        except ConfigError as err:
            yield str(err)
        if (draws := config.data.group_sampling.name) != "fixed":
            yield (
                f"data.group_sampling: {draws} and data.starts both request further answers after the first round: "
                "choose one"
            )
