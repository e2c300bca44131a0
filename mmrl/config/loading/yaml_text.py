"""YAML as the configuration reads and writes it: 1.2 scalars, no duplicate keys, and a line number for every key.

PyYAML resolves plain scalars by YAML 1.1, where `1e-4` is a string, `no` is False, `1:30` is 90 and `010` is 8.
Here they are resolved by the core schema of YAML 1.2, so that a learning rate is a number.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from mmrl.errors import ConfigError

try:  # libyaml's, which is ten times as fast
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

Path = tuple[str | int, ...]
"""Keys and list indices from the top of a document."""

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
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines: dict[Path, int] = {}
        problems: list[str] = []
        _survey(node, (), source, lines, problems, frozenset())
        if problems:
            raise ConfigError("\n".join(problems))
        return loader.construct_document(node), lines
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


def _survey(
    node: yaml.Node, path: Path, source: str, lines: dict[Path, int], problems: list[str], open_nodes: frozenset[int]
) -> None:
    """Note the line of everything below `node`, and what a configuration cannot hold."""
    if id(node) in open_nodes:
        raise ConfigError(f"{source}:{node.start_mark.line + 1}: an anchor that holds itself cannot be read")
    open_nodes |= {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _survey(item, (*path, index), source, lines, problems, open_nodes)
    elif isinstance(node, yaml.MappingNode):
        first_seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                problems.append(f"{source}:{line}: a key is a word, not a list or a map")
                continue
            here = (*path, key.value)
            if key.value in first_seen:
                dotted = ".".join(map(str, here))
                problems.append(f"{source}:{line}: {dotted} is already set in line {first_seen[key.value]}")
            first_seen.setdefault(key.value, line)
            lines[here] = line
            _survey(value, here, source, lines, problems, open_nodes)
