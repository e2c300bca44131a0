"""Prompts of judges as data files, and escaping of the untrusted texts that fill them.

A prompt is a YAML file:

    kind: point                # point, pair, checklist or ranking
    scale: [0, 10]             # point only: ask for a number; without it, yes or no
    system: You judge pictures.
    user: |
      The request:
      $prompt
      $shown
      Does the picture show it? Answer yes or no.

`$shown` is the place of images, frames and answers. `$prompt`, `$reference` and `$question` put a text between tags of
that name, and so do `$task`, `$criterion` and `$facts`, which are the sample's metadata of these names: one judge may
thus have another criterion for each sample. `$count` is the number of answers to rank, and `$$` is a dollar
sign. All are replaced at once, so that `$prompt` or braces inside a text are left unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mmrl.errors import ConfigError
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.suggestions import did_you_mean

Kind = Literal["point", "pair", "checklist", "ranking"]
FOLDER = Path(__file__).with_name("prompts")
MAX_FILE_BYTES = 100_000  # bytes

_SLOT = re.compile(r"\$(\$|[a-z]+)")
SAMPLE_SLOTS = ("task", "criterion", "facts")
"""The slots that the sample's metadata fills."""
_EVERYWHERE = {"prompt", "reference", "shown", *SAMPLE_SLOTS}
_ALLOWED = {
    "point": _EVERYWHERE,
    "pair": _EVERYWHERE,
    "checklist": {*_EVERYWHERE, "question"},
    "ranking": {*_EVERYWHERE, "count"},
}
_REQUIRED = {"point": {"shown"}, "pair": {"shown"}, "checklist": {"question", "shown"}, "ranking": {"shown"}}

# The start of a tag of these prompts, of a turn of a chat template, or of thinking: `<` and its full-width look-alikes,
# up to three invisible characters, a slash; bounded, so that no text can make the search slow.
_WIDE = "\uff1c\ufe64"
_HIDDEN = "[\\s\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]{0,3}"
_WORDS = (
    "prompt|answer|reference|question|task|criterion|facts|think|s>|bos|eos|pad|unk|sys>|start_of|end_of|turn|im_|image|"
    "img|video|vision"
)
_TAG = re.compile(f"[<{_WIDE}](?={_HIDDEN}(?:[|\uff5c]|[/\uff0f]?{_HIDDEN}(?:{_WORDS})))", re.IGNORECASE)
# [INST], [SYSTEM_PROMPT], [IMG], [AVAILABLE_TOOLS]: in capitals, as templates write them; [INST] in any case
_BRACKET_TAG = re.compile(r"\[(?=/?(?:[A-Z_]{2,30}|(?i:INST))\])")
# Control characters other than line breaks and tabs, and lone surrogates, which cannot be encoded as UTF-8.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class ImagePart:
    """An image among the parts of a message, as a URL."""

    url: str


MessagePart = str | ImagePart


@dataclass(frozen=True)
class JudgePrompt:
    """The content of a prompt file."""

    name: str
    kind: Kind
    system: str
    user: str
    scale: tuple[float, float] | None = None

    def uses(self, slot: str) -> bool:
        """Return True if the prompt has this slot."""
        return slot in _SLOT.findall(self.user)

    def messages(self, texts: Mapping[str, str], answers: Sequence[MessagePart]) -> list[dict[str, Any]]:
        """Return the messages of a request, with texts and answers in their slots."""
        parts: list[MessagePart] = []
        end = 0
        for slot in _SLOT.finditer(self.user):
            parts.append(self.user[end : slot.start()])
            end = slot.end()
            if slot[1] == "shown":
                parts.extend(answers)
            else:
                parts.append("$" if slot[1] == "$" else texts[slot[1]])
        content = _message_content([*parts, self.user[end:]])
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, {"role": "user", "content": content}]


def tagged(tag: str, text: str) -> str:
    """Return the escaped text between lines of <tag> and </tag>; it cannot contain these or a chat template's tags."""
    return f"<{tag}>\n{escape_tags(text)}\n</{tag}>"


def escape_tags(text: str) -> str:
    """Return the text with the first character of every possible tag replaced by a look-alike."""
    return _BRACKET_TAG.sub("\u3014", _TAG.sub("\u2039", _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)))


def load_prompt(name: str, kind: Kind) -> JudgePrompt:
    """Return a shipped prompt by name, or a user's prompt by the path of a .yaml file.

    Raises:
        RewardError: there is no such prompt, it is for another kind of judge, or it is incomplete.
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise RewardError(f"prompt: {path}: no such file; relative paths count from {Path.cwd()}")
    else:
        path = FOLDER / f"{name}.yaml"
        if name not in shipped():
            hint = did_you_mean(name, shipped()) or "or give the path of a .yaml file"
            raise RewardError(f"prompt: no prompt is called {name!r}: there are {', '.join(shipped(kind))}; {hint}")
    prompt = _read(path)
    if prompt.kind != kind:
        raise RewardError(f"prompt: {name} is a prompt of kind {prompt.kind!r}, and this judge needs one of {kind!r}")
    return prompt


def shipped(kind: Kind | None = None) -> list[str]:
    """Return the sorted names of the shipped prompts; `kind` None means all kinds."""
    paths = sorted(FOLDER.glob("*.yaml"))
    return [path.stem for path in paths if kind is None or _read(path).kind == kind]


def _read(path: Path) -> JudgePrompt:
    from mmrl.config.loading.yaml_text import parse_yaml

    try:
        text = path.read_text(encoding="utf-8")
        document = parse_yaml(text, str(path))[0] if len(text) <= MAX_FILE_BYTES else None
    except (OSError, UnicodeDecodeError) as err:
        raise RewardError(f"prompt: {path} cannot be read: {err}") from None
    except ConfigError as err:
        raise RewardError(f"prompt: {err}") from None
    if not isinstance(document, dict):
        raise RewardError(f"prompt: {path} must have the keys kind, user, and may have system and scale")
    if unknown := [str(key) for key in document if key not in ("kind", "user", "system", "scale")]:
        raise RewardError(f"prompt: {path} has the unknown key {unknown[0]}; there are kind, user, system and scale")
    kind: Any = document.get("kind")
    user, system = document.get("user"), document.get("system", "")
    if kind not in get_args(Kind):
        raise RewardError(f"prompt: {path}: kind is {kind!r}; it must be one of {', '.join(get_args(Kind))}")
    if not isinstance(user, str) or not isinstance(system, str):
        raise RewardError(f"prompt: {path}: user and system must be texts")
    slots = [slot for slot in _SLOT.findall(user) if slot != "$"]
    if wrong := sorted(set(slots) - _ALLOWED[kind]):
        allowed = ", ".join(f"${slot}" for slot in sorted(_ALLOWED[kind]))
        raise RewardError(f"prompt: {path}: ${wrong[0]} is not a slot: there are {allowed}, and $$")
    if missing := sorted(slot for slot in _REQUIRED[kind] if slots.count(slot) != 1):
        raise RewardError(
            f"prompt: {path}: ${missing[0]} must stand in `user` once, not {slots.count(missing[0])} times"
        )
    return JudgePrompt(path.stem, kind, system.strip(), user.strip(), _scale(document.get("scale"), kind, path))


def _scale(value: Any, kind: Kind, path: Path) -> tuple[float, float] | None:
    if value is None:
        return None
    numbers = [float(n) for n in value if isinstance(n, int | float)] if isinstance(value, list) else []
    if kind != "point" or len(numbers) != 2 or not -math.inf < numbers[0] < numbers[1] < math.inf:
        raise RewardError(f"prompt: {path}: scale is {value!r}; it is [low, high], in a prompt of kind point")
    return numbers[0], numbers[1]


def _message_content(parts: Sequence[MessagePart]) -> str | list[dict[str, Any]]:
    """Return the content of a message: a string if it has no images, which text-only servers accept too."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, ImagePart):
            found.append({"type": "image_url", "image_url": {"url": part.url}})
        elif part and found and found[-1]["type"] == "text":
            found[-1]["text"] += part
        elif part:
            found.append({"type": "text", "text": part})
    if all(part["type"] == "text" for part in found):
        return "".join(part["text"] for part in found)
    return found
