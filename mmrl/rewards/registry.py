"""Rewards by name: built in, from other packages, or from a file of one's own.

A package offers rewards as entry points of the group `mmrl.rewards`:

    [project.entry-points."mmrl.rewards"]
    sharpness = "my_package.rewards:Sharpness"

Nothing is imported before a reward is asked for.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard, TypeVar

from mmrl.rewards.base import Reward, RewardError, spec_of
from mmrl.rewards.catalogue import BUILT_IN
from mmrl.rewards.functions import reward_factory

GROUP = "mmrl.rewards"
Scorer = TypeVar("Scorer", bound=Callable[..., Any])  # a Reward class, or a function that scores one answer

_registered: dict[str, Callable[..., Any]] = {}


def load(name: str, **args: Any) -> Reward:
    """Build a reward.

    `name` is one of `available()`, or `path/to/file.py:thing` where the thing is a `Reward` class or a function that
    scores one answer (see `reward_factory`). Loading runs that file or package: name only code that you trust.

        load("compressibility", quality=80)
        load("my_rewards.py:redness", threshold=0.7)
    """
    factory = _factory(name)
    try:
        inspect.signature(factory).bind(**args)
    except TypeError as why:
        raise RewardError(f"{name}{inspect.signature(factory)}: {why}") from None
    return factory(**args)


def register(scorer: Scorer) -> Scorer:
    """Decorator: make a `Reward` class known by its `name`, or a function that scores one answer by its own."""
    name = scorer.name if _is_reward(scorer) else scorer.__name__
    if not _same_place(_registered.get(name, scorer), scorer):
        raise RewardError(f"there is already a reward {name!r}: {_place(_registered[name])}")
    for place in [BUILT_IN.get(name), *(point.value for point in _points(name))]:
        if place not in (None, _place(scorer)):
            raise RewardError(f"there is already a reward {name!r}: {place}")
    if not _is_reward(scorer):
        reward_factory(scorer, name)  # refused here rather than when it is first asked for
    _registered[name] = scorer
    return scorer


def available() -> list[str]:
    """The names that `load` takes, sorted."""
    return sorted({*_registered, *BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def describe(name: str) -> str:
    """What a reward measures, its range, what it needs and its arguments."""
    factory = _factory(name)
    known = spec_of(factory)
    low, high = known.range
    arguments = ", ".join(_argument(p) for p in inspect.signature(factory).parameters.values())
    facts = [
        f"{name}: {inspect.getdoc(factory) or 'no description'}",
        "",
        f"range      {low:g} to {high:g}, {known.direction} is better",
        f"scope      {known.scope}",
        f"needs      {', '.join(known.needs) or 'nothing in particular'}",
        f"gradients  {'yes' if known.differentiable else 'no'}",
        f"source     {known.source or 'not stated'}",
        f"licence    {known.licence}",
        f"arguments  {arguments or 'none'}",
    ]
    return "\n".join(facts)


def _argument(parameter: inspect.Parameter) -> str:
    """As it is written in the source, where annotations are texts."""
    kind = parameter.annotation if isinstance(parameter.annotation, str) else None
    shown = str(parameter) if kind is None else f"{parameter.name}: {kind}"
    if kind is None or parameter.default is parameter.empty:
        return shown
    return f"{shown} = {parameter.default!r}"


def reward_class(name: str) -> type[Reward]:
    """The class of a reward, which nothing has been built from yet. Names are those that `load` takes."""
    return _factory(name)


def _factory(name: str) -> type[Reward]:
    """The class that builds the reward."""
    path, _, thing = name.rpartition(":")
    if path.endswith(".py"):
        return _as_reward(_attribute(_module_of(Path(path)), thing, name), thing)
    if name.endswith(".py"):
        raise RewardError(f"{name}: say which reward of the file, as in {name}:my_reward")
    found = _as_reward(_registered[name] if name in _registered else _resolve(name), name)
    if getattr(found, "name", None) != name:
        raise RewardError(f"reward {name!r} is {_place(found)}, which calls itself {getattr(found, 'name', None)!r}")
    return found


def _resolve(name: str) -> Any:
    places = {BUILT_IN[name]} if name in BUILT_IN else {point.value for point in _points(name)}
    if not places:
        near = difflib.get_close_matches(name, available(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(available())}"
        raise RewardError(f"no reward is called {name!r}: {hint} A reward of your own is path/to/file.py:name.")
    if len(places) > 1:
        raise RewardError(f"several packages offer a reward {name!r}: {', '.join(sorted(places))}; uninstall one")
    place = places.pop()
    module, _, thing = place.partition(":")
    try:
        return _attribute(importlib.import_module(module), thing, place)
    except ImportError as why:
        raise RewardError(f"reward {name!r} cannot be imported from {place}: {why}") from why


def _points(name: str) -> list[EntryPoint]:
    return list(entry_points(group=GROUP, name=name))


def _module_of(path: Path) -> ModuleType:
    if not path.is_file():
        raise RewardError(f"{path}: no such file; paths of rewards are relative to {Path.cwd()}")
    source = path.resolve()
    name = f"mmrl_rewards_{source.stem}_{hashlib.sha256(str(source).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise RewardError(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as why:
        del sys.modules[name]
        raise RewardError(f"{path} cannot be imported: {type(why).__name__}: {why}") from why
    return module


def _attribute(module: ModuleType, thing: str, place: str) -> Any:
    if hasattr(module, thing):
        return getattr(module, thing)
    near = difflib.get_close_matches(thing, [n for n in vars(module) if not n.startswith("_")], n=1)
    raise RewardError(f"{place}: there is no {thing!r} in it" + (f"; did you mean {near[0]}?" if near else ""))


def _as_reward(thing: Any, name: str) -> type[Reward]:
    if _is_reward(thing):
        return thing
    if inspect.isfunction(thing):
        return reward_factory(thing, name)
    raise RewardError(f"{name} is a {type(thing).__name__}; a reward is a Reward class or a function")


def _is_reward(thing: Any) -> TypeGuard[type[Reward]]:
    return inspect.isclass(thing) and issubclass(thing, Reward)


def _place(scorer: Any) -> str:
    return f"{scorer.__module__}:{scorer.__qualname__}"


def _same_place(one: Any, other: Any) -> bool:
    """Also true after a notebook cell or a module was run again."""
    return _place(one) == _place(other)
