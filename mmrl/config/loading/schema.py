"""The keys of the configuration: walk the sections by type, and suggest the right key for an unknown one."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from mmrl.config.loading.yaml_text import Path
from mmrl.config.section import ComponentSection, Section
from mmrl.config.train import TrainConfig

_CALLED_ELSEWHERE = {
    "batch_size": ("data", "micro_batch"),
    "gradient_accumulation_steps": ("data", "micro_batch"),
    "learning_rate": ("optimizer", "lr"),
    "max_steps": ("training", "iterations"),
    "model_name_or_path": ("policy", "model"),
    "num_generations": ("data", "group_size"),
    "num_inference_steps": ("sampling", "steps"),
    "num_train_epochs": ("training", "epochs"),
    "output_dir": ("run", "dir"),
}
"""Keys as diffusers, transformers and trl call them."""


_ONE_SEQUENCE = (
    "one picture or video is not divided over several processes, because diffusers' enable_parallelism does that on "
    "accelerators alone and was never checked in training here (docs/scaling.md). To save memory choose run.place: "
    "strict, which divides the model, and policy.gradient_checkpointing"
)
ABSENT_KEYS = {
    "run.context_parallel": _ONE_SEQUENCE,
    "run.sequence_parallel": _ONE_SEQUENCE,
}
"""Keys that users of other libraries look for and that do not exist here -> the end of the message about it."""


def alternatives(annotation: Any) -> list[Any]:
    """Return the types that an annotation allows, without `None` and metadata."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [each for arg in get_args(annotation) if arg is not type(None) for each in alternatives(arg)]
    return [annotation]


def sections_in(annotation: Any) -> list[type[Section]]:
    """Return the sections among the types that an annotation allows; the first is the default."""
    return [each for each in alternatives(annotation) if isinstance(each, type) and issubclass(each, Section)]


def section_for(annotation: Any, value: Any) -> type[Section] | None:
    """Return the section that `value` fills, chosen by its tag; None if no section has that tag."""
    sections = sections_in(annotation)
    if len(sections) == 1 and issubclass(sections[0], ComponentSection):
        return sections[0].class_for(value)
    if len(sections) < 2 or not isinstance(value, Mapping) or tag_key(sections) not in value:
        return sections[0] if sections else None
    return section_tagged(sections, value[tag_key(sections)])


def tag_key(sections: list[type[Section]]) -> str:
    """Return the key that tells several sections apart: `kind` or `name`."""
    return "kind" if all("kind" in each.model_fields for each in sections) else "name"


def section_tagged(sections: list[type[Section]], tag: Any) -> type[Section] | None:
    """Return the section whose `kind`, or `name`, is `tag`."""
    key = tag_key(sections)
    return next((each for each in sections if each.model_fields[key].default == tag), None)


def is_list(annotation: Any) -> bool:
    """Return whether a YAML list is expected (a tuple in the frozen sections)."""
    return any(get_origin(each) is tuple for each in alternatives(annotation))


def entry_type(annotation: Any, index: int) -> Any:
    """Return the type of one entry of a list."""
    args = next(get_args(each) for each in alternatives(annotation) if get_origin(each) is tuple)
    return args[0] if args[-1] is Ellipsis else args[min(index, len(args) - 1)]


def map_type(annotation: Any) -> Any:
    """Return the type of the values of a map, such as of `models`; None if no map of sections is expected."""
    values = [get_args(each)[1] for each in alternatives(annotation) if get_origin(each) is dict]
    return next((value for value in values if sections_in(value)), None)


def is_free_map(annotation: Any) -> bool:
    """Return whether any key is allowed, as in a reward's `args`."""
    return any(each is Any or get_origin(each) is dict for each in alternatives(annotation))


def key_paths(annotation: Any, value: Any = None, path: Path = ()) -> Iterator[Path]:
    """Yield every key, section keys included; lists have one entry. `value` selects the variants of sections."""
    section = section_for(annotation, value)
    if section is not None:
        for key, field in section.model_fields.items():
            yield (*path, key)
            yield from key_paths(field.annotation, child(value, key), (*path, key))
    elif is_list(annotation):
        yield from key_paths(entry_type(annotation, 0), child(value, 0), (*path, 0))


def unknown_key(data: Any, section: type[Section], path: Path, root: type[Section] = TrainConfig) -> str:
    """Return the message that the last key of `path`, below `root`, is not a key of `section`, with the likely one."""
    wrong = f"{dotted(path)} is not a key of {section.__name__}"
    if root is TrainConfig and dotted(path) in ABSENT_KEYS:
        return f"{wrong}: {ABSENT_KEYS[dotted(path)]}"
    nearest = nearest_keys(data, path, root)
    if nearest:
        return f"{wrong}: did you mean {' or '.join(map(dotted, nearest))}?"
    return f"{wrong}, whose keys are {', '.join(section.model_fields)}"


def nearest_keys(data: Any, path: Path, root: type[Section] = TrainConfig) -> list[Path]:
    """Return the known keys below `root` nearest to `path`: at most three, all equally near; none if all are far.

    Distance is optimal string alignment of the last key, a third of whose letters may be wrong. A key of another
    section must be nearer by more than one letter, or be spelt right, to be preferred.
    """
    from rapidfuzz.distance import OSA  # a C extension, needed on errors alone

    if root is TrainConfig and path[-1] in _CALLED_ELSEWHERE:
        return [_CALLED_ELSEWHERE[str(path[-1])]]
    wrong, bound = str(path[-1]), max(1, round(len(str(path[-1])) / 3))
    costs: dict[Path, float] = {}
    for known in key_paths(root, data):
        letters = OSA.distance(wrong.lower(), str(known[-1]))
        if letters <= bound:
            costs[known] = letters + (0 if known[:-1] == path[:-1] else 1.5)
    best = min(costs.values(), default=0)
    tied = [known for known, cost in costs.items() if cost == best]
    return sorted(tied, key=lambda known: (len(known), dotted(known)))[:3]


def dotted(path: Path) -> str:
    """Return a path as it is written on the command line."""
    return ".".join(map(str, path))


def child(value: Any, key: str | int) -> Any:
    """Return an entry of a map or list; None where there is none."""
    try:
        return value[key]
    except (TypeError, KeyError, IndexError):
        return None
