"""What a judge is asked, as data files; and text of a policy or a data set, which cannot leave its place in them.

A prompt is a YAML file:

    kind: point                # point, pair, checklist or ranking
    scale: [0, 10]             # point only: a number is asked for; without it, yes or no
    system: You judge pictures.
    user: |
      The request:
      $prompt
      $shown
      Does the picture show it? Answer yes or no.

`$shown` is where pictures, frames and answers stand. `$prompt`, `$reference` and `$question` put a text between tags of
that name, `$count` is the number of answers to rank, and `$$` is a dollar sign. All are filled in at once, so that what
a text holds, be it `$prompt` or braces, stays as it is.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mmrl.rewards.core.reward_errors import RewardError

Kind = Literal["point", "pair", "checklist", "ranking"]
FOLDER = Path(__file__).with_name("prompts")
LARGEST_FILE = 100_000  # bytes

_SLOT = re.compile(r"\$(\$|[a-z]+)")
_ALLOWED = {
    "point": {"prompt", "reference", "shown"},
    "pair": {"prompt", "reference", "shown"},
    "checklist": {"prompt", "reference", "question", "shown"},
    "ranking": {"prompt", "reference", "count", "shown"},
}
_DUE = {"point": {"shown"}, "pair": {"shown"}, "checklist": {"question", "shown"}, "ranking": {"shown"}}

# What opens or closes a tag of ours, a turn of a chat template, or thinking. `<` and its wide look-alikes, up to three
# invisible characters, a slash; bounded, so that no text can make the search slow.
_WIDE = "\uff1c\ufe64"
_HIDDEN = "[\\s\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]{0,3}"
_WORDS = (
    "prompt|answer|reference|question|think|s>|bos|eos|pad|unk|sys>|start_of|end_of|turn|im_|image|img|video|vision"
)
_TAG = re.compile(f"[<{_WIDE}](?={_HIDDEN}(?:[|\uff5c]|[/\uff0f]?{_HIDDEN}(?:{_WORDS})))", re.IGNORECASE)
# [INST], [SYSTEM_PROMPT], [IMG], [AVAILABLE_TOOLS]: in capitals, as templates write them; [INST] in any
_INST = re.compile(r"\[(?=/?(?:[A-Z_]{2,30}|(?i:INST))\])")
# A line break or a tab is text; other control characters are none, and half a surrogate pair cannot be sent at all.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Picture:
    """A picture among the parts of a message, as a URL."""

    url: str


Part = str | Picture


@dataclass(frozen=True)
class Prompt:
    """A prompt file, read."""

    name: str
    kind: Kind
    system: str
    user: str
    scale: tuple[float, float] | None = None

    def asks_for(self, slot: str) -> bool:
        """Whether this text is part of it."""
        return slot in _SLOT.findall(self.user)

    def messages(self, texts: Mapping[str, str], shown: Sequence[Part]) -> list[dict[str, Any]]:
        """A request's messages, with the texts and what is shown in their places."""
        parts: list[Part] = []
        at = 0
        for slot in _SLOT.finditer(self.user):
            parts.append(self.user[at : slot.start()])
            at = slot.end()
            if slot[1] == "shown":
                parts.extend(shown)
            else:
                parts.append("$" if slot[1] == "$" else texts[slot[1]])
        content = _merged([*parts, self.user[at:]])
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, {"role": "user", "content": content}]


def between(tag: str, text: str) -> str:
    """The text between <tag> and </tag>, on lines of their own; it cannot hold either, nor a tag of a chat template."""
    return f"<{tag}>\n{harmless(text)}\n</{tag}>"


def harmless(text: str) -> str:
    """The text with the first character of all that could pass for a tag of ours changed to one that looks alike."""
    return _INST.sub("\u3014", _TAG.sub("\u2039", _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)))


def load_prompt(name: str, kind: Kind) -> Prompt:
    """A shipped prompt by name, or one of your own by the path of a .yaml file.

    Raises:
        RewardError: no such prompt, or one that is not for this kind of judge or is not whole.
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise RewardError(f"prompt: {path}: no such file; relative paths count from {Path.cwd()}")
    else:
        path = FOLDER / f"{name}.yaml"
        if name not in shipped():
            near = difflib.get_close_matches(name, shipped(), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "or give the path of a .yaml file"
            raise RewardError(f"prompt: no prompt is called {name!r}: there are {', '.join(shipped(kind))}; {hint}")
    prompt = _read(path)
    if prompt.kind != kind:
        raise RewardError(f"prompt: {name} is a prompt of kind {prompt.kind!r}, and this judge needs one of {kind!r}")
    return prompt


def shipped(kind: Kind | None = None) -> list[str]:
    """Names of the prompts that come with the package, sorted; of one kind only, if it is given."""
    paths = sorted(FOLDER.glob("*.yaml"))
    return [path.stem for path in paths if kind is None or _read(path).kind == kind]


def _read(path: Path) -> Prompt:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        held = yaml.safe_load(text) if len(text) <= LARGEST_FILE else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as err:
        raise RewardError(f"prompt: {path} cannot be read: {err}") from None
    if not isinstance(held, dict):
        raise RewardError(f"prompt: {path} must hold the keys kind, user and, if wanted, system and scale")
    if unknown := [str(key) for key in held if key not in ("kind", "user", "system", "scale")]:
        raise RewardError(f"prompt: {path} has the unknown key {unknown[0]}; there are kind, user, system and scale")
    kind: Any = held.get("kind")
    user, system = held.get("user"), held.get("system", "")
    if kind not in get_args(Kind):
        raise RewardError(f"prompt: {path}: kind is {kind!r}; it must be one of {', '.join(get_args(Kind))}")
    if not isinstance(user, str) or not isinstance(system, str):
        raise RewardError(f"prompt: {path}: user and system must be texts")
    slots = [slot for slot in _SLOT.findall(user) if slot != "$"]
    if wrong := sorted(set(slots) - _ALLOWED[kind]):
        allowed = ", ".join(f"${slot}" for slot in sorted(_ALLOWED[kind]))
        raise RewardError(f"prompt: {path}: ${wrong[0]} is nothing that can be filled in: there are {allowed}, and $$")
    if missing := sorted(slot for slot in _DUE[kind] if slots.count(slot) != 1):
        raise RewardError(
            f"prompt: {path}: ${missing[0]} must stand in `user` once, not {slots.count(missing[0])} times"
        )
    return Prompt(path.stem, kind, system.strip(), user.strip(), _scale(held.get("scale"), kind, path))


def _scale(held: Any, kind: Kind, path: Path) -> tuple[float, float] | None:
    if held is None:
        return None
    numbers = [float(n) for n in held if isinstance(n, int | float)] if isinstance(held, list) else []
    if kind != "point" or len(numbers) != 2 or not -math.inf < numbers[0] < numbers[1] < math.inf:
        raise RewardError(
            f"prompt: {path}: scale is {held!r}; it is two numbers, low and high, of a prompt of kind point"
        )
    return numbers[0], numbers[1]


def _merged(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """A message's content: one text where there are no pictures, which servers of texts alone understand too."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Picture):
            found.append({"type": "image_url", "image_url": {"url": part.url}})
        elif part and found and found[-1]["type"] == "text":
            found[-1]["text"] += part
        elif part:
            found.append({"type": "text", "text": part})
    if all(part["type"] == "text" for part in found):
        return "".join(part["text"] for part in found)
    return found
