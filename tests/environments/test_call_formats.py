"""Calls in the formats of model families: what is written is read back, and what is odd is a bad call or no call."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.environments import load_tool
from mmrl.environments.call_formats import FAMILY_FORMATS, FORMATS, call_format
from mmrl.environments.tool_calls import MAX_DEPTH, BadCall, ToolCall, typed_arguments
from mmrl.errors import ConfigError

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True).filter(lambda name: name != "print")
VALUES = st.recursive(
    st.booleans() | st.integers(-(10**12), 10**12) | st.floats(-1e6, 1e6) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
PYTHON_WORDS = {"in", "is", "as", "if", "or", "and", "not", "for", "def", "del", "try", "from", "with", "pass", "else",
                "elif", "while", "class", "break", "raise", "yield", "lambda", "global", "import", "return", "assert",
                "except", "finally", "continue", "nonlocal", "async", "await"}  # fmt: skip
ARGUMENTS = st.dictionaries(NAMES.filter(lambda name: name not in PYTHON_WORDS), VALUES, max_size=3)


@pytest.mark.parametrize("name", FORMATS)
@given(tool=NAMES.filter(lambda name: name not in PYTHON_WORDS), arguments=ARGUMENTS)
def test_a_written_call_is_read_back(name, tool, arguments):
    written = FORMATS[name].write(tool, arguments)
    (call,) = FORMATS[name].read(written, 4).calls
    assert isinstance(call, ToolCall), call
    assert call.name == tool
    if call.textual:
        assert call.arguments.keys() == arguments.keys()
        bare = type("Bare", (), {"parameters": {"properties": {
            key: {"type": "string"} if isinstance(value, str) else {} for key, value in arguments.items()
        }}})()  # fmt: skip
        assert typed_arguments(call, bare) == arguments
    else:
        assert call.arguments == arguments


@pytest.mark.parametrize("name", ["hermes", "qwen_xml", "internlm", "mistral", "gemma"])
def test_several_calls_with_words_around_are_read_up_to_a_cap(name):
    one = FORMATS[name]
    text = "First I look. " + "\nand then\n".join(one.write("crop", {"image": number}) for number in range(5))
    parsed = one.read(text, 3)
    assert [typed_arguments(call, load_tool("crop"))["image"] for call in parsed.calls] == [0, 1, 2]
    assert parsed.dropped == 2


def test_gemma_reads_lists_of_calls_and_leaves_other_lists_alone():
    gemma = FORMATS["gemma"]
    assert [call.name for call in gemma.read("[crop(image=1), draw(image=2)]", 4).calls] == ["crop", "draw"]
    assert gemma.read("[1, 2, 3]", 4).calls == () and gemma.read('[{"box": [1, 2]}]', 4).calls == ()
    assert isinstance(gemma.read("[crop(1)]", 4).calls[0], BadCall)


def test_llama_reads_calls_that_are_the_whole_turn():
    llama = FORMATS["llama"]
    two = '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": 1}}'
    assert [call.name for call in llama.read(two, 4).calls] == ["a", "b"]
    assert [call.name for call in llama.read(f"<|python_tag|>{two}", 4).calls] == ["a", "b"]
    assert llama.read('The answer is {"name": "a", "parameters": {}}', 4).calls == ()
    assert llama.read('{"box": [1, 2, 3, 4]}', 4).calls == ()  # an answer in JSON
    assert isinstance(llama.read('{"name": "a", "parameters"', 4).calls[0], BadCall)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", '[TOOL_CALLS] [{"name": "crop", "arguments": {"image": 1}}]'),
        ("mistral", '[TOOL_CALLS]crop[ARGS]{"image": 1}'),
        ("mistral", '[TOOL_CALLS]crop{"image": 1}'),
        ("gemma", "```tool_code\nprint(crop(image=1))\n```"),
        ("gemma", "```tool_code\nresult = crop(image=1)\n```"),
        ("gemma", "[crop(image=1)]"),
        ("internlm", '<|action_start|><|plugin|>\n{"name": "crop", "parameters": {"image": 1}}\n<|action_end|>'),
        ("hermes", '<think><tool_call>no</think>\n<tool_call>{"name":"crop","arguments":{"image":1}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "crop", "parameters": {"image": 1}}</tool_call>'),
        ("qwen_xml", "<tool_call><function=crop><parameter=image>1</parameter></function></tool_call>"),
    ],
)  # fmt: skip
def test_variants_of_one_call(name, text):
    (call,) = FORMATS[name].read(text, 4).calls
    assert isinstance(call, ToolCall), call
    assert (call.name, typed_arguments(call, load_tool("crop"))) == ("crop", {"image": 1})


DEEP = "[" * 10_000 + "]" * 10_000
BAD = {
    "never closed": '<tool_call>{"name": "crop"',
    "no JSON": "<tool_call>crop(1)</tool_call>",
    "a list": "<tool_call>[1]</tool_call>",
    "no name": '<tool_call>{"arguments": {}}</tool_call>',
    "a number for a name": '<tool_call>{"name": 3}</tool_call>',
    "arguments in a text": '<tool_call>{"name": "crop", "arguments": "{}"}</tool_call>',
    "both keys": '<tool_call>{"name": "crop", "arguments": {}, "parameters": {}}</tool_call>',
    "another key": '<tool_call>{"name": "crop", "arguments": {}, "path": "/etc/passwd"}</tool_call>',
    "a key twice": '<tool_call>{"name": "crop", "name": "draw"}</tool_call>',
    "NaN": '<tool_call>{"name": "crop", "arguments": {"x": NaN}}</tool_call>',
    "a long number": f'<tool_call>{{"name": "crop", "arguments": {{"x": {"9" * 5000}}}}}</tool_call>',
    "deep": f'<tool_call>{{"name": "crop", "arguments": {{"x": {DEEP}}}}}</tool_call>',
    "rather deep": f'<tool_call>{{"name": "crop", "arguments": {{"x": {"[" * 20}{"]" * 20}}}}}</tool_call>',
}


@pytest.mark.parametrize("case", BAD)
def test_bad_calls_say_what_is_wrong(case):
    (call,) = FORMATS["hermes"].read(BAD[case], 4).calls
    assert isinstance(call, BadCall) and call.kind in ("malformed", "too_long") and len(call.reason) < 400


@pytest.mark.parametrize(
    "code",
    ["crop(1)", "crop(**{})", "import os", "crop(image=open('x'))", "a.b(c=1)", "crop(image=__import__('os'))", "(", "",
     "-" * 3_999 + "1", "(" * 3_999, "x" * 5_000, "crop(image=" + "[" * 90 + "]" * 90 + ")", "\x00"],
)  # fmt: skip
def test_python_that_is_no_call_is_a_bad_call(code):
    calls = FORMATS["gemma"].read(f"```tool_code\n{code}\n```", 4).calls
    assert calls and all(isinstance(call, BadCall) for call in calls)


@pytest.mark.parametrize("name", FORMATS)
@given(text=st.text(max_size=200))
def test_any_text_is_read_without_an_error(name, text):
    FORMATS[name].read(text, 4)
    FORMATS[name].read(FORMATS[name].write("crop", {}).replace("crop", text), 4)


@pytest.mark.parametrize("name", FORMATS)
def test_reading_takes_linear_time(name):
    pieces = [
        "<tool_call>",
        "<think>",
        "[TOOL_CALLS]",
        "```tool_code\n",
        "<|action_start|>",
        "<function=",
        '{"name":',
        "{",
    ]
    for piece in pieces:
        started = time.perf_counter()
        FORMATS[name].read(piece * (200_000 // len(piece)), 4)
        assert time.perf_counter() - started < 1


def test_depth_at_the_limit_is_read():
    inner = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    (call,) = FORMATS["hermes"].read(f'<tool_call>{{"name": "a", "arguments": {{"x": {inner}}}}}</tool_call>', 1).calls
    assert isinstance(call, ToolCall)


def test_a_family_chooses_its_format():
    assert call_format("auto", "qwen2_5_vl").name == "hermes"
    assert call_format("auto", "internvl").name == "hermes"
    assert call_format("auto", "gemma3").name == "gemma"
    assert call_format("auto").name == "hermes"
    assert call_format("internlm", "internvl").name == "internlm"
    assert set(FAMILY_FORMATS.values()) <= set(FORMATS)
    with pytest.raises(ConfigError, match="one of hermes"):
        call_format("xml")


@pytest.mark.parametrize("name", FORMATS)
def test_instructions_name_every_tool_and_an_example_that_is_of_the_format(name):
    text = FORMATS[name].describe([load_tool("crop"), load_tool("calculator")])
    assert '"crop"' in text and '"calculator"' in text and '"required": ["box"]' in text
    assert FORMATS[name].example in text
