"""The bases of configuration sections: `Section`, and `ComponentSection` for sections that users can add."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from mmrl.components import Registry
from mmrl.errors import ConfigError

STRICT = {"strict": True}
"""The validation context that is passed with `strict=True`, so that sections chosen from a registry are strict too."""

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed that all generators take."""


class Section(BaseModel):
    """A frozen model that rejects unknown keys; the text under each field is that field's help."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
    number: ClassVar[str | None] = None
    """The field that a bare number sets: `kl: 0.04` is `kl: {coef: 0.04}`. None: the section takes no bare number."""

    @model_validator(mode="before")
    @classmethod
    def _partial_sections_keep_the_defaults_of_their_field(cls, value: Any) -> Any:
        """`kl: 0.1` or `kl: {coef: 0.1}` where the default is `KLConfig(kind="velocity_mse")` changes `coef` alone."""
        value = _map_of(cls.number, value)
        if not isinstance(value, Mapping):
            return value
        filled = dict(value)
        for name, field in cls.model_fields.items():
            default, kind = field.default, field.annotation
            part = _map_of(getattr(default, "number", None), value.get(name))
            if not (isinstance(part, Mapping) and isinstance(default, Section) and isinstance(kind, type)):
                continue
            if isinstance(default, kind) and isinstance(written := default.model_dump(exclude_unset=True), dict):
                chosen = kind.class_for(written | dict(part)) if issubclass(kind, ComponentSection) else kind
                known = chosen.model_fields if chosen is not None else kind.model_fields
                filled[name] = {key: each for key, each in written.items() if key in known} | dict(part)
        return filled


def _map_of(number: str | None, value: Any) -> Any:
    """Return a bare number as the map that it stands for in a section with this `number`; all else as it is."""
    is_bare = number is not None and isinstance(value, int | float) and not isinstance(value, bool)
    return {number: value} if is_bare else value


class ComponentSection(Section):
    """A section whose class follows from its `name`: a component that is built in, installed, or in a Python file.

    A *root* class sets `registry` and `default_name`. Where a field has a root class for its type, the component of the
    given name fills it; in Python, `Root(name="x", ...)` makes an instance of that component. A component derives from
    its root and adds fields, which are its keys in YAML.
    """

    registry: ClassVar[Registry[Any]]
    """The components by name; set by root classes alone."""
    default_name: ClassVar[str]
    """The name where a section has none."""
    shorthand: ClassVar[bool] = False
    """True: the text `x` stands for `{name: x}`."""
    name: str

    def __new__(cls, *_: Any, **fields: Any) -> Self:
        chosen = cls.registry.load(fields.get("name", cls.default_name)) if cls.is_root() else cls
        made: Self = super().__new__(chosen)
        return made

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        if cls.is_root():  # as with pydantic.SerializeAsAny, a component is written with all of its fields
            inner: Any = schema
            while inner["type"] == "definitions":
                inner = inner["schema"]
            inner["serialization"] = core_schema.simple_ser_schema("any")
        return schema

    @classmethod
    def is_root(cls) -> bool:
        """Return whether the class stands for all components of its registry."""
        return "registry" in cls.__dict__

    @classmethod
    def class_for(cls, value: Any) -> type[ComponentSection] | None:
        """Return the component that `value` names, which is loaded now; None if there is no such component."""
        if not cls.is_root():
            return cls
        name = value.get("name", cls.default_name) if isinstance(value, Mapping) else value or cls.default_name
        try:
            chosen: type[ComponentSection] | None = cls.registry.load(name) if name in cls.registry else None
        except ConfigError:
            return None
        return chosen

    @model_validator(mode="wrap")
    @classmethod
    def _choose_class(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if not cls.is_root():
            if isinstance(value, Mapping) and "name" not in value and cls.model_fields["name"].annotation is str:
                value = {"name": f"{cls.__module__}:{cls.__qualname__}"} | dict(value)
            return handler(value)
        if cls.shorthand and isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            return handler(value)
        name = value.get("name", cls.default_name)
        if name not in cls.registry:
            raise PydanticCustomError("unknown_component", "no such component", {"expected": names_of(cls.registry)})
        try:
            chosen: type[Self] = cls.registry.load(name)
        except ConfigError as err:
            raise PydanticCustomError("component_error", "{message}", {"message": str(err)}) from None
        filled = {"name": name} | dict(value)
        return chosen.model_validate(filled, strict=bool(info.context) or None, context=info.context)


def named_sections(root: Callable[[], type[ComponentSection]], *modules: str) -> Callable[[], dict[str, str]]:
    """Return a function that finds the sections below `root()` in these modules by their own names.

    Such a section has the field `name: Literal["x"] = "x"`. The result maps names to references `module:Class`.
    """

    def find() -> dict[str, str]:
        return {
            section.model_fields["name"].default: f"{module}:{section.__name__}"
            for module in modules
            for section in vars(import_module(module)).values()
            if isinstance(section, type) and issubclass(section, root()) and section.__module__ == module
            if section.model_fields["name"].annotation is not str
        }

    return find


def names_of(registry: Registry[Any]) -> str:
    """Return the names of a registry as pydantic writes the values of a Literal."""
    return ", ".join(f"'{each}'" for each in registry.names())


def registered(registry: Registry[Any]) -> AfterValidator:
    """Return a pydantic check that a string names a component of `registry`, or has the form `path/to/file.py:Name`."""

    def check(name: str) -> str:
        if name not in registry:
            raise PydanticCustomError("literal_error", "no such component", {"expected": names_of(registry)})
        return name

    return AfterValidator(check)


def tag_of(key: str, default: str) -> Callable[[Any], str]:
    """Return a function that finds a section's variant: the value of `key`, or `default` where a map has none."""

    def tag(value: Any) -> str:
        return str(value.get(key, default) if isinstance(value, Mapping) else getattr(value, key, default))

    return tag
