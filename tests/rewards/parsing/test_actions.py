"""Actions on a screen out of answers."""

import pytest

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.parsing.actions import ALIASES, canonical_action, parse_action


@pytest.mark.parametrize(
    "text",
    [
        '{"action": "click", "coordinate": [320, 240]}',
        '[{"action": "click", "coordinate": [320, 240]}]',
        "{'action': 'click', 'point': [320, 240], 'thought': 'it\\'s there'}",
        "[{'action': 'left_click', 'coordinate': (320, 240)}]",
        '{"action_type": "Click", "x": 320, "y": 240}',
        '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [320, 240]}}',
        '<tool_call>\n{"name": "mobile_use", "arguments": {"action": "tap", "coordinate": [320, 240]}}\n</tool_call>',
        '```json\n{"action": "click", "coordinate": [320, 240]}\n```',
        "click(320, 240)",
        "CLICK(320.0, 240)",
        "click([320, 240])",
        "click(x=320, y=240)",
        "click(start_box='(320, 240)')",
        "click(start_box='<|box_start|>(320,240)<|box_end|>')",
        "click(point='<point>320 240</point>')",
        "Thought: it's there\nAction: click(320, 240)",
        "Thought: it's there.\nBelow. Action: click(320, 240)",
        "It's there.\n  Action: click(320, 240)",
    ],
)
def test_clicks_are_read_in_every_form(text):
    action = parse_action(text)
    assert (action.kind, action.point, action.text) == ("click", (320, 240), None)


@pytest.mark.parametrize(
    ("text", "kind", "typed"),
    [
        ('{"action": "type", "text": "don\'t \\"panic\\""}', "type", 'don\'t "panic"'),
        ("{'action': 'input_text', 'input_text': 'it\\'s'}", "type", "it's"),
        ("type(content='hello')", "type", "hello"),
        ('type("hello")', "type", "hello"),
        ("type(content='Action: go')", "type", "Action: go"),
        ("Action: type(content='Action: go')", "type", "Action: go"),
        ("Thought: so\nAction: type(content='my Action: go')", "type", "my Action: go"),
        ("type(content='')", "type", ""),
        ("scroll(direction='down')", "scroll", "down"),
        ('{"action": "hotkey", "keys": ["ctrl", "c"]}', "hotkey", "ctrl c"),
        ("press_back()", "press_back", None),
        ('{"action": "Press Back"}', "press_back", None),
        ('{"action": "navigate_back", "text": null}', "press_back", None),
    ],
)
def test_texts_and_directions_are_read(text, kind, typed):
    action = parse_action(text)
    assert (action.kind, action.text, action.point) == (kind, typed, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "click",
        "I would click the button",
        "{}",
        "[]",
        '{"action": ""}',
        '{"action": 3}',
        '{"action": "click", "action": "type"}',
        '{"action": "click", "action_type": "type"}',
        '{"action": "click"} {"action": "type"}',
        '{"action": "click"} or scroll()',
        '[{"action": "click"}, {"action": "type"}]',
        "click(1, 2) click(3, 4)",
        '{"action": "click", "coordinate": [320, 24',
        "click(320, 24",
        "Action: click(1, 2) Action: type('a')",
        "Thought: so. Action: click(1, 2)\nAction: type('a')",
        '["click", 320, 240]',
        "<tool_call>{}</tool_call><tool_call>{}</tool_call>",
        "сlick(1, 2)",  # noqa: RUF001
        '{"action": "' + "a" * 20_000 + '"}',
        '{"a":' * 3000,
    ],
)
def test_texts_that_are_no_single_action_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        parse_action(text)


def test_points_and_texts_are_parsed_lazily():
    action = parse_action("{'action': 'press_back', 'point': [-100, -100, 3], 'text': 5, 'value': 'b'}")
    assert action.kind == "press_back"
    with pytest.raises(InvalidAnswer, match="two numbers"):
        _ = action.point
    with pytest.raises(InvalidAnswer, match="2 texts"):
        _ = action.text
    with pytest.raises(InvalidAnswer, match="2 points"):
        _ = parse_action('{"action": "click", "point": [1, 2], "coordinate": [3, 4]}').point
    with pytest.raises(InvalidAnswer, match="not a text"):
        _ = parse_action('{"action": "type", "text": 5}').text


def test_aliases_map_to_canonical_names():
    assert not set(ALIASES.values()) & set(ALIASES)
    assert canonical_action(" Long-Press ") == "long_press"
    assert canonical_action("scroll") != canonical_action("swipe")
