"""YAML as the configuration reads and writes it: 1.2 scalars, no duplicate keys, and a line number for every key.

PyYAML resolves plain scalars by YAML 1.1, where `1e-4` is a string, `no` is False, `1:30` is 90 and `010` is 8.
Here they are resolved by the core schema of YAML 1.2, so that a learning rate is a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from mmrl.errors import ConfigError

try:  # libyaml's, which is ten times as fast
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

Path = tuple[str | int, ...]
"""Keys and list indices from the top of a document."""
MOST_LEVELS = 100
"""The deepest nesting that is read: a text from elsewhere could overflow the stack of the parser."""
MOST_ENTRIES = 100_000
"""The most keys and list entries that the anchors of a short text may stand for; a few lines could mean billions."""

_CORE_SCHEMA = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.nan",
        list("-+.0123456789"),
    ),
)

_LINE_BREAKS = set("\x85\u2028\u2029")


class _Loader(SafeLoader):
    """Knows the scalars of YAML 1.2 alone."""


class _Dumper(yaml.SafeDumper):
    """Knows the scalars of YAML 1.1 and 1.2, and so quotes every text that either would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Unicode's line breaks survive in double quotes alone."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _LINE_BREAKS & set(text) else None)


_Dumper.add_representer(str, _Dumper.represent_text)
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _CORE_SCHEMA:
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def parse_yaml(text: str, source: str) -> tuple[Any, dict[Path, int]]:
    """The document, and the line (from 1) of each key and list entry. `source` names the text in messages."""
    loader: _Loader | None = None
    try:
        _check_levels(text, source)
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        survey = _Survey(loader, source, max(len(text), MOST_ENTRIES))
        survey.visit(node, (), frozenset())
        if survey.problems:
            raise ConfigError("\n".join(survey.problems))
        return loader.construct_document(node), survey.lines
    except yaml.MarkedYAMLError as err:
        at = err.problem_mark or err.context_mark
        last = text.rstrip().count("\n")  # what never ends is found missing after the text
        place = f"{source}:{min(at.line, last) + 1}" if at else source
        raise ConfigError(f"{place}: not valid YAML: {err.problem or err.context}") from None
    except yaml.YAMLError as err:
        raise ConfigError(f"{source}: not valid YAML: {err}") from None
    finally:
        if loader is not None:
            loader.dispose()


def dump_yaml(data: Any) -> str:
    """Text that `parse_yaml`, and any YAML 1.1 reader, loads back equal. Tuples come back as lists."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


def _check_levels(text: str, source: str) -> None:
    """Raise a ConfigError if a text is nested in more than `MOST_LEVELS` levels; events are read without recursion."""
    if len(text) <= MOST_LEVELS:
        return
    levels = 0
    for event in yaml.parse(text, Loader=_Loader):
        levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if levels > MOST_LEVELS:
            line = f":{event.start_mark.line + 1}" if event.start_mark else ""
            raise ConfigError(f"{source}{line}: nested in more than {MOST_LEVELS} levels cannot be read")


@dataclass
class _Survey:
    """The line of every key and list entry of a document, and what a configuration cannot have."""

    loader: _Loader
    source: str
    most: int
    """The most keys and entries that the document may have."""
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def visit(self, node: yaml.Node, path: Path, open_nodes: frozenset[int]) -> None:
        """Note everything below `node`, which lies within `open_nodes`.

        Raises:
            ConfigError: an anchor refers to itself, or anchors stand for too much.
        """
        if id(node) in open_nodes:
            raise ConfigError(f"{self.source}:{node.start_mark.line + 1}: an anchor that holds itself cannot be read")
        if len(self.lines) > self.most or len(path) > MOST_LEVELS:
            raise ConfigError(
                f"{self.source}: its anchors stand for more than {self.most:,} entries or {MOST_LEVELS} levels: write "
                "them out"
            )
        open_nodes |= {id(node)}
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[(*path, index)] = item.start_mark.line + 1
                self.visit(item, (*path, index), open_nodes)
        elif isinstance(node, yaml.MappingNode):
            self._visit_entries(node, path, open_nodes)
        else:
            self._read(node, path)

    def _visit_entries(self, node: yaml.MappingNode, path: Path, open_nodes: frozenset[int]) -> None:
        first_seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(f"{self.source}:{line}: a key is a word, not a list or a map")
                continue
            here = (*path, key.value)
            if key.value in first_seen:
                dotted = ".".join(map(str, here))
                self.problems.append(f"{self.source}:{line}: {dotted} is already set in line {first_seen[key.value]}")
            first_seen.setdefault(key.value, line)
            self.lines[here] = line
            self._read(key, here)
            self.visit(value, here, open_nodes)

    def _read(self, node: yaml.Node, path: Path) -> None:
        """Note a scalar that is not what its tag says, or a number of more digits than Python reads."""
        try:
            self.loader.construct_object(node)
        except ValueError as err:
            name = ".".join(map(str, path)) or "the text"
            self.problems.append(f"{self.source}:{node.start_mark.line + 1}: {name[:80]} cannot be read: {err!s:.200}")
