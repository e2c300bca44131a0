"""The formats in which model families write tool calls: descriptions of tools, calls, and results.

    hermes (Qwen2-VL to Qwen3-VL, InternVL3)
        <tool_call>{"name": "crop", "arguments": {...}}</tool_call>
    qwen_xml (Qwen3-Coder, Qwen3.5)
        <tool_call><function=crop><parameter=box>[1, 2, 3, 4]</parameter></function></tool_call>
    internlm (InternVL2, InternLM)
        <|action_start|><|plugin|>{"name": "crop", "parameters": {...}}<|action_end|>
    llama
        {"name": "crop", "parameters": {...}}, alone or after <|python_tag|>; several with ; between
    mistral
        [TOOL_CALLS][{"name": "crop", "arguments": {...}}]  or  [TOOL_CALLS]crop[ARGS]{...}
    gemma
        ```tool_code
        crop(box=[1, 2, 3, 4])
        ```
        or [crop(box=[1, 2, 3, 4])] as the whole turn

What stands inside <think>...</think> is no call. Reading never raises and takes time linear in the length of the text;
a part that begins like a call and is none is a `BadCall`.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mmrl.environments.call_parts import between, unclosed, value_at, without_thoughts, xml_call
from mmrl.environments.python_calls import listed_calls, python_call_text, python_calls
from mmrl.environments.tool import Tool
from mmrl.environments.tool_calls import (
    MAX_CHARACTERS,
    BadCall,
    ParsedTurn,
    ToolCall,
    call_of,
    call_text,
    capped,
    checked_call,
    json_call,
    too_long,
)
from mmrl.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


class CallFormat(ABC):
    """The format of calls of some model families."""

    name: ClassVar[str]
    special_tokens: ClassVar[tuple[str, ...]] = ()
    """Tokens of the vocabulary that mark calls: the text of a turn is decoded with them, or its calls are lost."""
    example: ClassVar[str]
    """The sentence that tells a policy how a call is written."""
    open_result: ClassVar[str] = "<tool_response>\n"
    close_result: ClassVar[str] = "\n</tool_response>"

    def read(self, text: str, most: int) -> ParsedTurn:
        """Return the first `most` calls of a turn."""
        return capped(self.calls_in(without_thoughts(text), most + 1_000), most)

    @abstractmethod
    def calls_in(self, text: str, most: int) -> list[ToolCall | BadCall]:
        """Return at most `most` calls of a turn without thoughts, in order."""

    @abstractmethod
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call as a policy would write it."""

    def describe(self, tools: Sequence[Tool]) -> str:
        """Return the instructions that name the tools, with their JSON schemas, and the form of a call."""
        return f"These tools can be called:\n<tools>\n{_signatures(tools)}\n</tools>\n{self.example}"

    def result(self, text: str) -> str:
        """Return the text of one result as the policy reads it."""
        return f"{self.open_result}{text}{self.close_result}"


class Hermes(CallFormat):
    """JSON between <tool_call> and </tool_call>."""

    name = "hermes"
    example = 'Write each call as <tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'

    def calls_in(self, text: str, most: int) -> list[ToolCall | BadCall]:
        """Return the calls between the tags."""
        return [
            json_call(part) if closed else unclosed("<tool_call>")
            for part, closed in between(text, "<tool_call>", "</tool_call>", most)
        ]

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the call between tags."""
        return f"<tool_call>\n{call_text(name, arguments)}\n</tool_call>"


class QwenXML(CallFormat):
    """A function and its parameters as tags between <tool_call> and </tool_call>."""

    name = "qwen_xml"
    example = (
        "Write each call as\n<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n"
        "</function>\n</tool_call>"
    )

    def calls_in(self, text: str, most: int) -> list[ToolCall | BadCall]:
        """Return the calls between the tags."""
        return [
            xml_call(part) if closed else unclosed("<tool_call>")
            for part, closed in between(text, "<tool_call>", "</tool_call>", most)
        ]

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the call as tags; values that are no texts are JSON."""
        lines = [
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
            for key, value in arguments.items()
        ]
        return f"<tool_call>\n<function={name}>\n{''.join(lines)}</function>\n</tool_call>"


class InternLM(CallFormat):
    """JSON between <|action_start|><|plugin|> and <|action_end|>."""

    name = "internlm"
    special_tokens = ("<|action_start|>", "<|plugin|>", "<|action_end|>")
    example = 'Write each call as <|action_start|><|plugin|>{"name": "...", "parameters": {...}}<|action_end|>'

    def calls_in(self, text: str, most: int) -> list[ToolCall | BadCall]:
        """Return the calls between the marks."""
        return [
            json_call(part.strip().removeprefix("<|plugin|>")) if closed else unclosed("<|action_start|>")
            for part, closed in between(text, "<|action_start|>", "<|action_end|>", most)
        ]

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the call between marks."""
        return f"<|action_start|><|plugin|>\n{call_text(name, arguments, 'parameters')}<|action_end|>"


class Llama(CallFormat):
    """JSON objects with a name, which are the whole turn. JSON without a name is an answer."""

    name = "llama"
    special_tokens = ("<|python_tag|>",)
    example = (
        'To call a tool, write {"name": "...", "parameters": {...}} and nothing else; between several calls write ";".'
    )

    def calls_in(self, text: str, most: int) -> list[ToolCall | BadCall]:
        """Return the calls that the turn begins with."""
        stripped = text.strip()
        marked = stripped.startswith("<|python_tag|>")
        stripped = stripped.removeprefix("<|python_tag|>").strip()
        if not marked and not stripped.startswith("{"):
            return []
        if len(stripped) > MAX_CHARACTERS:
            return [too_long(stripped)]
        found: list[ToolCall | BadCall] = []
        at = 0
        while at < len(stripped) and len(found) < most:
            value, end = value_at(stripped, at)
            if isinstance(value, BadCall):
                return [*found, value] if marked or '"name"' in stripped or found else []
            if not marked and not (isinstance(value, dict) and "name" in value):
                return found
            found.append(call_of(value))
            at = end
            while at < len(stripped) and stripped[at] in "; \n\t\r":
                at += 1
        return found

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the call as a JSON object."""
        return call_text(name, arguments, "parameters")


class Mistral(CallFormat):
    """A JSON list of calls, or a name and its arguments, after [TOOL_CALLS]."""

    name = "mistral"
    special_tokens = ("[TOOL_CALLS]", "[ARGS]")
    example = 'To call tools, write [TOOL_CALLS][{"name": "...", "arguments": {...}}]'
    open_result, close_result = "[TOOL_RESULTS]", "[/TOOL_RESULTS]"

    def calls_in(self, text: str, most: int) -> list[ToolCall | BadCall]:
        """Return the calls after each mark."""
        found: list[ToolCall | BadCall] = []
        for part in text.split("[TOOL_CALLS]", most + 1)[1 : most + 1]:
            found += self._calls_of(part.strip())
            if len(found) >= most:
                break
        return found[:most]

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the call as a list of one."""
        return f"[TOOL_CALLS][{call_text(name, arguments)}]"

    def _calls_of(self, text: str) -> list[ToolCall | BadCall]:
        if len(text) > MAX_CHARACTERS:
            return [too_long(text)]
        start = 0
        name = _NAME.match(text)
        if name:
            start = name.end() + (len("[ARGS]") if text.startswith("[ARGS]", name.end()) else 0)
        value, _ = value_at(text, start)
        if isinstance(value, BadCall):
            return [value]
        if name:
            return [checked_call(name[0], value)]
        return [call_of(each) for each in value] if isinstance(value, list) else [call_of(value)]


class Gemma(CallFormat):
    """Python calls with named literal arguments, in a fence ```tool_code or as a list. They are parsed, never run."""

    name = "gemma"
    example = "To call tools, write\n```tool_code\nname(key=value)\n```\nwith named arguments that are literals."
    open_result, close_result = "```tool_output\n", "\n```"

    def calls_in(self, text: str, most: int) -> list[ToolCall | BadCall]:
        """Return the calls in all fences, or in the list that is the whole turn."""
        found: list[ToolCall | BadCall] = listed_calls(text)
        for part, closed in between(text, "```tool_code", "```", most):
            found += python_calls(part) if closed else [unclosed("```tool_code")]
            if len(found) >= most:
                break
        return found[:most]

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the call in a fence."""
        return f"```tool_code\n{python_call_text(name, arguments)}\n```"


FORMATS: Mapping[str, CallFormat] = {
    each.name: each for each in (Hermes(), QwenXML(), InternLM(), Llama(), Mistral(), Gemma())
}
FAMILY_FORMATS = {
    "qwen3_5": "qwen_xml",
    "qwen3_5_moe": "qwen_xml",
    "mllama": "llama",
    "llama4": "llama",
    "mistral3": "mistral",
    "pixtral": "mistral",
    "gemma3": "gemma",
    "gemma3n": "gemma",
}
"""The formats of model types of transformers; all others have `hermes`."""


def call_format(name: str, family: str | None = None) -> CallFormat:
    """Return a format by its name, or with the name `auto` that of a model type of transformers.

    Raises:
        ConfigError: there is no such format.
    """
    if name == "auto":
        name = FAMILY_FORMATS.get(family or "", Hermes.name)
    if name not in FORMATS:
        raise ConfigError(f"there is no format of tool calls {name!r}: it is auto or one of {', '.join(FORMATS)}")
    return FORMATS[name]


def _signatures(tools: Sequence[Tool]) -> str:
    return "\n".join(
        json.dumps(
            {"type": "function", "function": function},
            ensure_ascii=False,
        )
        for function in (
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)} for tool in tools
        )
    )
