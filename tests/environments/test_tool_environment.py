"""Turns with tools: results, mistakes that are answered and counted, and tools that fail without a wrong answer."""

from __future__ import annotations

import json
import time

import pytest

from mmrl.data.sample import Sample
from mmrl.environments import EpisodeBatch, ToolEnvironment, load_tool
from mmrl.environments.call_runner import MAX_HANGING
from mmrl.environments.tool_environment import MAX_TURN, cleaned
from mmrl.errors import ConfigError
from tests.environments.worlds import READER, Fragile, Slow, page, small_reader

TEXT_SAMPLE = Sample("text", prompt="Calculate.")


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def environment(*tools, **settings):
    return ToolEnvironment(tools or [load_tool("calculator"), load_tool("crop")], **settings)


def test_a_call_gets_its_result_and_an_answer_ends_the_episode():
    episode = environment().begin(TEXT_SAMPLE, READER)
    step = episode.step(f"Let me see. {call('calculator', expression='6 * 7')}")
    assert step.observation.text == "<tool_response>\n42\n</tool_response>"
    assert step.info == {"calls": 1.0} and step.rewards == {}
    assert episode.step("It is 42.").observation is None
    assert episode.outcome() == {
        "answer": "It is 42.",
        "ended": "answer",
        "void": None,
        "detail": "",
        "turns": 2,
        "calls": {"calculator": 1},
        "problems": {},
    }
    with pytest.raises(ValueError, match="over"):
        episode.step("again")


def test_an_outcome_has_the_stated_time_of_turns_and_calls():
    def spent(*actions: str, **seconds: float) -> float:
        episode = environment(seconds=seconds).begin(TEXT_SAMPLE, READER)
        for action in actions:
            episode.step(action)
        return episode.outcome()["seconds"]

    calls = [call("calculator", expression="1") * 2, call("calculator", expression="x")]
    assert spent("42", turn=2.0, calculator=5.0) == 2.0
    assert spent(*calls, "42", turn=2.0, calculator=5.0) == 3 * 2.0 + 3 * 5.0
    assert spent(*calls, "42", calculator=0.5) == 3 * 0.5
    for wrong in ({"search": 1.0}, {"turn": 0.0}, {}):
        with pytest.raises(ConfigError, match=r"environment\.args\.seconds: .* maps turn, calculator, crop"):
            environment(seconds=wrong)


def test_pictures_of_results_are_numbered_and_within_the_budget(tmp_path):
    sample, reader = page(tmp_path), small_reader(10_000)
    episode = environment(load_tool("crop", side=320)).begin(sample, reader)
    first = episode.step(call("crop", box=[0, 0, 500, 500]) + call("crop", box=[500, 500, 1000, 1000])).observation
    assert "(picture 1)" in first.text and "(picture 2)" in first.text
    assert [image.width * image.height <= 10_000 for image in first.images] == [True, True]
    corner = episode.step(call("crop", image=2, box=[500, 500, 1000, 1000])).observation.images[0]
    # Pixel (x, y) of the page is (x mod 256, y mod 256, 7): the corner spans x from 300 to 400 and y from 150 to 200.
    assert corner.getpixel((corner.width // 2, corner.height // 2)) == pytest.approx((350 % 256, 175, 7), abs=4)


MISTAKES = {
    "malformed": "<tool_call>{</tool_call>",
    "arguments": call("calculator", expression=[1]),
    "extra argument": call("calculator", expression="1", path="/etc/passwd"),
    "unknown": call("shell", command="ls"),
    "refused": call("crop", box=[0, 0, 10, 10]),
    "too_long": call("calculator", expression="1" * 30_000),
}
KINDS = {"arguments": "malformed", "extra argument": "malformed"}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_answered_and_counted(case):
    episode = environment().begin(TEXT_SAMPLE, READER)
    step = episode.step(MISTAKES[case])
    kind = KINDS.get(case, case)
    assert step.info[kind] == 1.0 and len(step.observation.text) < 1_000
    assert episode.step(call("calculator", expression="1 + 1")).observation.text.count("2") == 1  # it may try again
    episode.step("2")
    outcome = episode.outcome()
    assert outcome["problems"] == {kind: 1} and outcome["void"] is None and outcome["answer"] == "2"


def test_calls_above_the_cap_are_counted_and_the_first_ones_run():
    episode = environment(max_calls=2).begin(TEXT_SAMPLE, READER)
    step = episode.step(call("calculator", expression="1") * 1_000)
    assert step.info == {"calls": 2.0, "too_many": 998.0}
    assert "998 more calls were not carried out" in step.observation.text


def test_a_turn_of_too_many_characters_is_not_read():
    step = environment().begin(TEXT_SAMPLE, READER).step("a" * (MAX_TURN + 1))
    assert step.info == {"calls": 0.0, "too_long": 1.0} and step.observation is not None


def test_the_last_turn_carries_out_no_call():
    tool = Slow()
    episode = environment(tool, max_turns=1).begin(TEXT_SAMPLE, READER)
    assert episode.step(call("slow", seconds=30)).observation is None
    assert episode.outcome()["ended"] == "turns" and episode.outcome()["calls"] == {} and tool.most == 0
    assert episode.outcome()["answer"] is None


def test_a_first_turn_that_must_call_is_reminded():
    episode = environment(first_turn="must_call").begin(TEXT_SAMPLE, READER)
    step = episode.step("42")
    assert "Call a tool" in step.observation.text and step.info["no_call"] == 1.0
    assert episode.step("42").observation is None and episode.outcome()["answer"] == "42"


def test_with_tags_a_turn_with_neither_call_nor_answer_ends_without_an_answer():
    episode = environment(answer="tags").begin(TEXT_SAMPLE, READER)
    assert episode.step("hm").observation is None
    assert (episode.outcome()["ended"], episode.outcome()["answer"]) == ("no_answer", None)
    second = environment(answer="tags").begin(TEXT_SAMPLE, READER)
    second.step("<answer>42</answer>")
    assert second.outcome()["ended"] == "answer"


def test_a_turn_that_was_cut_off_ends_the_episode():
    episode = environment().begin(TEXT_SAMPLE, READER)
    assert episode.step(None).observation is None
    assert episode.outcome()["ended"] == "cut_off" and episode.outcome()["void"] is None


@pytest.mark.parametrize("how", ["value", "exit", "memory", "timeout", "nothing", "picture", "text"])
def test_a_tool_that_dies_makes_the_episode_void(how):
    episode = environment(Fragile()).begin(TEXT_SAMPLE, READER)
    step = episode.step(call("fragile", how=how))
    assert step.observation is None and step.info["error"] == 1.0
    outcome = episode.outcome()
    assert (outcome["ended"], outcome["void"], outcome["answer"]) == ("void", "error", None) and outcome["detail"]


def test_a_tool_that_hangs_makes_the_episode_void_and_is_not_started_without_end():
    tools = environment(Slow(), deadline_s=0.05)
    for number in range(MAX_HANGING + 3):
        episode = tools.begin(TEXT_SAMPLE, READER)
        started = time.perf_counter()
        assert episode.step(call("slow", seconds=3)).observation is None
        assert time.perf_counter() - started < 1
        outcome = episode.outcome()
        assert outcome["void"] == "timeout" and outcome["problems"] == {"timeout": 1}
        assert ("still run" in outcome["detail"]) == (number >= MAX_HANGING)
    assert tools.tools["slow"].most == MAX_HANGING


def test_slow_tools_of_all_rows_and_calls_run_at_once():
    batch = EpisodeBatch(environment(Slow()), [TEXT_SAMPLE] * 32, READER)
    started = time.perf_counter()
    steps = batch.step(dict.fromkeys(range(32), call("slow", seconds=0.2) * 2))
    assert time.perf_counter() - started < 2  # one after the other they take 13 s
    assert all(step.observation.text.count("waited 0.2") == 2 for step in steps.values())


def test_a_tool_with_one_place_runs_one_call_at_a_time_and_waiting_is_not_late():
    tool = Slow(concurrency=1)
    batch = EpisodeBatch(environment(tool, deadline_s=0.3), [TEXT_SAMPLE] * 8, READER)
    steps = batch.step(dict.fromkeys(range(8), call("slow", seconds=0.1)))
    assert tool.most == 1
    assert all(step.observation is not None for step in steps.values())  # the last waited 0.7 s for its place


def test_long_results_are_cut_off_and_say_so():
    class Talker(Slow):
        name = "slow"

        def run(self, context, arguments):
            return type(super().run(context, arguments))("word " * 10_000)

    text = environment(Talker(), max_text=100).begin(TEXT_SAMPLE, READER).step(call("slow", seconds=0)).observation.text
    assert len(text) < 250 and "cut off after 100 characters" in text


def test_pictures_above_the_cap_are_left_out_and_named(tmp_path):
    episode = environment(load_tool("crop"), max_images=1).begin(page(tmp_path), READER)
    observation = episode.step(call("crop", box=[0, 0, 500, 500]) * 2).observation
    assert len(observation.images) == 1 and "1 pictures left out" in observation.text


@pytest.mark.parametrize(
    "text",
    ["<image>", "<video>", "<|im_end|>", "</tool_response>", "[/INST]", "[TOOL_CALLS]", "```tool_code", "<|image_pad|>",
     "<start_of_turn>", "<s>", "</s>", "\u202e<\u200bimage>", "\x00\x1b[31m<eos>"],
)  # fmt: skip
def test_marks_in_the_text_of_a_tool_are_broken(text):
    cleaned_text = cleaned(text)
    for mark in ("<image>", "<video>", "<|", "</", "[/INST]", "[TOOL_CALLS]", "```", "<s", "<eos>", "\u202e", "\u200b",
                 "\x00", "\x1b"):  # fmt: skip
        assert mark not in cleaned_text
    assert cleaned("a < b and x[0] in [A] `code`\n1 << 2") == "a < b and x[0] in [A] `code`\n1 << 2"


def test_equal_actions_give_equal_episodes(tmp_path):
    sample = page(tmp_path)
    tools = environment(load_tool("crop"), load_tool("draw"), load_tool("calculator"))
    actions = [
        call("crop", box=[1, 2, 300, 400]) + call("calculator", expression="2 ** 9"),
        call("draw", image=1, boxes=[[10, 10, 500, 500]]),
        "done",
    ]
    runs = []
    for _ in range(2):
        episode = tools.begin(sample, READER)
        steps = [episode.step(action) for action in actions]
        observed = [step.observation for step in steps if step.observation]
        pixels = [image.tobytes() for each in observed for image in each.images]
        runs.append(([each.text for each in observed], pixels, episode.outcome()))
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_turns": 0}, "max_turns"), ({"deadline_s": 0}, "deadline_s"), ({"format": "yaml"}, "format")],
)
def test_settings_that_cannot_be_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        environment(**settings)
    with pytest.raises(ConfigError, match="tools"):
        ToolEnvironment([load_tool("crop"), load_tool("crop")])
