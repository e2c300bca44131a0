"""Components by name: built in, from another installed package, or from a Python file.

A policy loss, an advantage estimator, an objective, a transition, a VLM task, ... is a *component*. Each kind has one
`Registry`, which maps a name to a reference `module:Attribute` and imports nothing before `load`:

    TRANSITIONS = Registry("mmrl.transitions", "transition", {"cps": "mmrl.generation.diffusion.transitions:CPS"})
    TRANSITIONS.names()                    # built-in and installed names, sorted; imports nothing
    TRANSITIONS.load("cps")                # the attribute, imported now
    TRANSITIONS.load("my_file.py:MySDE")   # from a file, relative to the working directory; or "package.module:MySDE"

A package offers components as entry points of the registry's group:

    [project.entry-points."mmrl.transitions"]
    my_sde = "my_package.transitions:MySDE"
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from traceback import walk_tb
from types import CodeType, ModuleType
from typing import Any, Generic, TypeVar

from mmrl.errors import ConfigError
from mmrl.suggestions import did_you_mean

C = TypeVar("C")

_FILE_MODULE = "mmrl_component_"
"""The first letters of the names of modules that are files named as `path/to/file.py:Name`."""


class Registry(Generic[C]):
    """The components of one kind by name. Loading runs the component's package or file: load only trusted names.

    Every error is an `error` (default `ConfigError`) and names the component's kind, its name and its place.
    """

    def __init__(
        self,
        group: str,  # of entry points, such as "mmrl.policy_losses"
        kind: str,  # in messages, such as "policy loss"
        built_in: Mapping[str, str]
        | Callable[[], Mapping[str, str]],  # name -> "module:Attribute"; called once if used
        base: str | None = None,  # "module:Class" that components derive from (classes) or are instances of; None: any
        error: type[Exception] = ConfigError,
    ) -> None:
        self.group, self.kind = group, kind
        self._built_in, self._base, self._error = built_in, base, error
        self.registered: dict[str, Any] = {}
        """The components of this process by name (`register`)."""

    @cached_property
    def built_in(self) -> dict[str, str]:
        """The references of the built-in components by name."""
        return dict(self._built_in() if callable(self._built_in) else self._built_in)

    @property
    def _one(self) -> str:
        return f"{'an' if self.kind[0] in 'aeio' else 'a'} {self.kind}"

    def names(self) -> list[str]:
        """Return the built-in names in their order, then the installed ones, sorted. Imports nothing."""
        installed = {name for name, _ in _entry_points(self.group, tuple(sys.path))}
        return [*self.built_in, *sorted(installed - set(self.built_in))]

    def available(self) -> list[str]:
        """Return all names that `load` takes, sorted."""
        return sorted({*self.registered, *self.names()})

    def register(self, name: str, component: Any) -> None:
        """Add a component under a name, also once more, as when a cell of a notebook is run again.

        Raises:
            ConfigError: another component has the name.
        """
        place, known = place_of(component), self.registered.get(name)
        other = place_of(known) if known is not None else self.place(name) if name in self.names() else place
        if other != place:
            raise self._error(f"there is already {self._one} {name!r}: {other}")
        self.registered[name] = component

    def __contains__(self, name: object) -> bool:
        """Return whether `name` is built in, installed, or a reference (`is_reference`). Imports nothing."""
        return isinstance(name, str) and (name in self.built_in or is_reference(name) or name in self.names())

    def place(self, name: str) -> str:
        """Return the reference of a component: `module:Attribute`, or `name` itself if that is a reference.

        Raises:
            ConfigError: the name is unknown, or several packages offer it.
        """
        if is_reference(name):
            return name
        if name.endswith(".py"):
            raise self._error(f"{name}: name the {self.kind} in the file too, as in {name}:MyComponent")
        places = {place for each, place in _entry_points(self.group, tuple(sys.path)) if each == name}
        if name in self.built_in:
            places.add(self.built_in[name])
        if not places:
            hint = did_you_mean(name, self.names(), count=3, likeness=0.5) or f"known are {', '.join(self.names())}."
            raise self._error(f"there is no {self.kind} {name!r}: {hint} One of your own is path/to/file.py:Name.")
        if len(places) > 1:
            listed = ", ".join(sorted(places))
            raise self._error(f"several packages offer the {self.kind} {name!r}: {listed}; uninstall all but one")
        return places.pop()

    def load(self, name: str) -> C:
        """Import and return a component.

        Raises:
            ConfigError: the name is unknown or ambiguous, its module or file cannot be imported, or it is not a
                component of this kind.
        """
        if name in self.registered:
            registered: C = self.registered[name]
            return registered
        place = self.place(name)
        found = load_reference(place, self._error, f"the {self.kind} {name!r}")
        if self._base is not None:
            base = load_reference(self._base, self._error)
            if not (issubclass(found, base) if isinstance(found, type) else isinstance(found, base)):
                raise self._error(f"{place} is not {self._one}: it must derive from {self._base}")
        component: C = found
        return component

    def build(self, name: str, args: Mapping[str, Any], key: str) -> Any:
        """Import a component and call it with `args`; `key` is the section in messages.

        Raises:
            ConfigError: it cannot be loaded, or does not take these arguments.
        """
        component: Any = self.load(name)
        signature = inspect.signature(component)
        try:
            signature.bind(**args)
        except TypeError as err:
            known = ", ".join(str(each).replace("'", "") for each in signature.parameters.values())
            raise self._error(f"{key}: {name}({known}): {err}") from None
        try:
            return component(**args)
        except ValueError as err:
            raise self._error(f"{key}: {name}: {err}") from err


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the names and references that installed packages offer; read once for each `sys.path`, as that is slow."""
    return tuple((point.name, point.value) for point in entry_points(group=group))


def place_of(component: Any) -> str:
    """Return the reference of a class or function: `module:Name`."""
    return f"{component.__module__}:{component.__qualname__}"


def is_file_reference(name: str) -> bool:
    """Return whether `name` has the form `path/to/file.py:Name`."""
    return is_reference(name) and name.rpartition(":")[0].endswith(".py")


def named_files(value: Any) -> list[str]:
    """Return the paths of the files that a JSON value names, sorted: data, prompts, code as `path/to/file.py:Name`.

    A text counts if there is such a file, and for all files of a folder with weights in safetensors if it names one.
    Files that are named in these files are not among them.
    """
    homes = {text.rpartition(":")[0] if is_file_reference(text) else text for text in _texts_in(value)}
    files = {home for home in homes if _is_file(home)}
    for folder in homes:
        if _has_weights(folder):
            files |= {str(path) for path in Path(folder).rglob("*") if path.is_file()}
    return sorted(files)


def _texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value but the keys of its objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(each)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # no valid path
        return False


def _has_weights(text: str) -> bool:
    """Return whether a text names a folder with weights, directly in it: a model or an adapter, not a tree of work."""
    try:
        return text not in ("", ".", "..") and any(Path(text).glob("*.safetensors"))
    except (OSError, ValueError, NotImplementedError):  # no valid path
        return False


def place_in_user_file(error: BaseException) -> str:
    """Return "file.py, line 4", the last line of a file named as `path/to/file.py:Name` that `error` passed; or ""."""
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).startswith(_FILE_MODULE):
            return f"{Path(frame.f_code.co_filename).name}, line {line}"
    return ""


def is_reference(name: str) -> bool:
    """Return whether `name` has the form `path/to/file.py:Name` or `package.module:Name`."""
    home, _, attribute = name.rpartition(":")
    return attribute.isidentifier() and (home.endswith(".py") or all(part.isidentifier() for part in home.split(".")))


def load_reference(reference: str, error: type[Exception] = ConfigError, what: str = "") -> Any:
    """Return the attribute that `module:Attribute` or `path/to/file.py:Name` refers to.

    Raises:
        ConfigError (or `error`): the module or file cannot be imported, or it lacks the attribute. `what` names the
            thing in messages.
    """
    home, _, attribute = reference.rpartition(":")
    if home.endswith(".py"):
        module = _import_file(Path(home), error)
    else:
        try:
            module = importlib.import_module(home)
        except ImportError as err:
            raise error(f"{what or reference} cannot be imported from {reference}: {err}") from err
    if hasattr(module, attribute):
        return getattr(module, attribute)
    hint = did_you_mean(attribute, [name for name in vars(module) if not name.startswith("_")], before="; ")
    raise error(f"{reference}: {home} has no {attribute!r}{hint}")


class _PresentText(SourceFileLoader):
    """Load a file from its text: a compiled file may be of an earlier text with the same length and second."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the present text, compiled anew."""
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _import_file(path: Path, error: type[Exception]) -> ModuleType:
    """Import a Python file. An unchanged file is imported once, so that its classes stay the same objects."""
    if not path.is_file():
        raise error(f"{path}: no such file; paths are relative to {Path.cwd()}")
    source = path.resolve()
    digest = hashlib.sha256(str(source).encode() + source.read_bytes()).hexdigest()[:12]
    name = f"{_FILE_MODULE}{source.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _PresentText(name, str(source))
    spec = importlib.util.spec_from_file_location(name, source, loader=loader)
    if spec is None:
        raise error(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses, pydantic and pickle look a class's module up by name
    try:
        loader.exec_module(module)
    except Exception as err:
        del sys.modules[name]
        raise error(f"{path} cannot be imported: {type(err).__name__}: {err}") from err
    return module
