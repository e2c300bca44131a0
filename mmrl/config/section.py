"""The base of every configuration section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from mmrl.components import Registry


class Section(BaseModel):
    """Frozen, refuses unknown keys, and takes the text under each field as that field's help."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
    number: ClassVar[str | None] = None
    """The field that a bare number sets: `kl: 0.04` is `kl: {coef: 0.04}`. None: the section takes no bare number."""

    @model_validator(mode="before")
    @classmethod
    def _partial_sections_keep_the_defaults_of_their_field(cls, given: Any) -> Any:
        """`kl: {coef: 0.1}` where the field's default is `KLConfig(kind="velocity_mse")` changes `coef` alone."""
        if cls.number and isinstance(given, int | float) and not isinstance(given, bool):
            return {cls.number: given}
        if not isinstance(given, Mapping):
            return given
        filled = dict(given)
        for name, field in cls.model_fields.items():
            part, default = given.get(name), field.default
            if isinstance(part, Mapping) and isinstance(default, Section) and field.annotation is type(default):
                filled[name] = default.model_dump(exclude_unset=True) | dict(part)
        return filled


def registered(registry: Registry[Any]) -> AfterValidator:
    """Return a pydantic check that a string names a component of `registry`, or has the form `path/to/file.py:Name`."""

    def check(name: str) -> str:
        if name not in registry:
            expected = ", ".join(f"'{each}'" for each in registry.names())
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
        return name

    return AfterValidator(check)


def tag_of(key: str, default: str) -> Callable[[Any], str]:
    """What tells the variants of a section apart: the value of `key`, or `default` where a map does not say it."""

    def tag(given: Any) -> str:
        return str(given.get(key, default) if isinstance(given, Mapping) else getattr(given, key, default))

    return tag
