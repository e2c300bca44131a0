"""Requests to a judge: their content, and the name of every kind of failure."""

from __future__ import annotations

import itertools
import json
import pickle
import time

import pytest

from mmrl.rewards import RewardError
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.judges.endpoint import MAX_BODY_BYTES, Endpoint
from tests.rewards.judges.fake_judge_server import (
    Cuts,
    Drips,
    FakeJudge,
    Hangs,
    HangsUp,
    Late,
    Refuses,
    Says,
    Sends,
    Sure,
    giant,
)

MESSAGES = [{"role": "user", "content": "is it red?"}]
TIMEOUT_S = 0.4
PATIENT_S = 20.0  # where something else than time is to run out


def endpoint(base_url, api_key_env="", timeout_s=PATIENT_S, seed=7, extra_body=None, **others):
    return Endpoint(
        "some/model", base_url, api_key_env, timeout_s, 0.0, seed, extra_body, **{"concurrency": 8} | others
    )


def completion(**changes):
    choice = {"message": {"content": "Yes"}, "finish_reason": "stop"} | changes
    return Sends(json.dumps({"choices": [choice]}).encode())


def top(*entries):
    return completion(logprobs={"content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": list(entries)}]})


FAILURES = {
    "503": (Refuses(503), "http_503", True),
    "500 with a giant body": (Refuses(500, b"x" * 20_000_000), "http_500", True),
    "429": (Refuses(429, headers={"Retry-After": "3"}), "http_429", True),
    "408": (Refuses(408), "http_408", True),
    "400": (Refuses(400), "http_400", False),
    "401": (Refuses(401), "http_401", False),
    "404": (Refuses(404), "http_404", False),
    "a refusal that breaks off": (Refuses(502, b"", {"Content-Length": "9"}), "http_502", True),
    "hangs": (Hangs(), "timeout", True),
    "hangs in the middle": (Hangs(after=100), "timeout", True),
    "late": (Late(3 * TIMEOUT_S, Sure(0.5)), "timeout", True),
    "a byte now and then": (Drips(TIMEOUT_S / 20), "timeout", True),
    "hangs up": (HangsUp(), "connection", True),
    "cut": (Cuts(0.5), "truncated", True),
    "cut, with the length of the part": (Cuts(0.5, honest=True), "truncated", True),
    "cut before its last byte": (Cuts(0.999, honest=True), "truncated", True),
    "cut to nothing": (Sends(b""), "truncated", True),
    "giant": (giant(MAX_BODY_BYTES + 1), "too_large", False),
    "a page": (Sends(b"<html>gateway</html>", "text/html"), "not_json", False),
    "no UTF-8": (Sends(b"\xff\xfe{}"), "not_json", False),
    "a list": (Sends(b"[]"), "wrong_type", False),
    "null": (Sends(b"null"), "wrong_type", False),
    "a number": (Sends(b"1"), "wrong_type", False),
    "an error as a success": (Sends(b'{"error": {"message": "overloaded"}}'), "wrong_type", False),
    "no choices": (Sends(b'{"choices": []}'), "wrong_type", False),
    "choices as an object": (Sends(b'{"choices": {"0": 1}}'), "wrong_type", False),
    "a choice of null": (Sends(b'{"choices": [null]}'), "wrong_type", False),
    "no message": (Sends(b'{"choices": [{}]}'), "wrong_type", False),
    "content of a number": (completion(message={"content": 1}), "wrong_type", False),
    "no content": (completion(message={"content": None}), "wrong_type", False),
    "content in parts": (completion(message={"content": [{"text": "Yes"}]}), "wrong_type", False),
    "nested deeply": (Sends(b"[" * 200_000 + b"]" * 200_000), "wrong_type", False),
    "tokens of a number": (completion(logprobs={"content": 3}), "wrong_type", False),
    "tokens that are none": (completion(logprobs={"content": [1]}), "wrong_type", False),
    "a token of a number": (top({"token": 1, "logprob": -1}, {"token": "b", "logprob": -1}), "wrong_type", False),
    "a log-probability of a text": (top({"token": "a", "logprob": "-1"}), "wrong_type", False),
    "a log-probability of true": (top({"token": "a", "logprob": True}), "wrong_type", False),
    "a log-probability of NaN": (top({"token": "a", "logprob": float("nan")}), "wrong_type", False),
    "a log-probability above 0": (top({"token": "a", "logprob": 0.7}), "wrong_type", False),
    "refused": (completion(message={"content": None, "refusal": "I would rather not"}), "refused", False),
    "filtered": (completion(finish_reason="content_filter"), "content_filter", False),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_named_and_raised_in_time(name):
    answer, kind, transient = FAILURES[name]
    with FakeJudge(answer) as judge, pytest.raises(ScoringFailed) as failed:
        ask = endpoint(judge.base_url, timeout_s=TIMEOUT_S if kind in ("timeout", "http_502") else PATIENT_S)
        ask._client()  # importing openai takes a second
        begun = time.perf_counter()
        ask.complete(MESSAGES, 1, logprobs=True)
    assert (failed.value.kind, failed.value.transient) == (kind, transient), failed.value
    assert time.perf_counter() - begun < PATIENT_S - 5  # seconds more than it takes, for a busy machine
    assert len(judge.requests) <= 1, "the client tried again by itself"
    assert len(str(failed.value)) < 500


def test_retry_after_headers_are_passed_on():
    with FakeJudge(Refuses(429, headers={"Retry-After": "12"})) as judge, pytest.raises(ScoringFailed) as failed:
        endpoint(judge.base_url).complete(MESSAGES, 1)
    assert failed.value.failure.retry_after_s == 12
    dated = Refuses(503, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})
    with FakeJudge(dated) as judge, pytest.raises(ScoringFailed) as failed:
        endpoint(judge.base_url).complete(MESSAGES, 1)
    assert failed.value.failure.retry_after_s is None


def test_refused_connections_are_transient_failures():
    with FakeJudge(Sure(1.0)) as judge:
        gone = judge.base_url
    with pytest.raises(ScoringFailed, match="cannot be reached") as failed:
        endpoint(gone).complete(MESSAGES, 1)
    assert failed.value.kind == "connection" and failed.value.transient


def test_complete_returns_text_and_log_probabilities():
    with FakeJudge(Sure(0.75)) as judge:
        reply = endpoint(judge.base_url).complete(MESSAGES, 1, logprobs=True)
    assert reply.text == "Yes" and not reply.truncated
    assert reply.first_token == pytest.approx({"Yes": -0.3390, "No": -1.4376, "The": -2.9957}, abs=1e-3)


@pytest.mark.parametrize(
    "logprobs",
    [None, {}, {"content": None}, {"content": []}, {"content": [{"token": "Yes", "logprob": -1, "top_logprobs": []}]},
     {"content": [{"token": "Yes", "logprob": -1, "top_logprobs": [{"token": "Yes", "logprob": -1}]}]}],
)  # fmt: skip
def test_first_token_needs_several_log_probabilities(logprobs):
    with FakeJudge(completion(logprobs=logprobs)) as judge:
        assert endpoint(judge.base_url).complete(MESSAGES, 1, logprobs=True).first_token is None


def test_truncated_replies_are_marked():
    with FakeJudge(Says("Yes, bec", finish_reason="length")) as judge:
        assert endpoint(judge.base_url).complete(MESSAGES, 3).truncated


def test_request_has_the_configured_settings():
    with FakeJudge(Sure(1.0)) as judge:
        endpoint(judge.base_url, extra_body={"top_k": 5}).complete(MESSAGES, 1, logprobs=True)
        endpoint(judge.base_url, seed=None).complete(MESSAGES, 9)
    first, second = judge.requests
    common = {"model": "some/model", "messages": MESSAGES, "temperature": 0.0}
    assert first == common | {"max_tokens": 1, "logprobs": True, "top_logprobs": 20, "seed": 7, "top_k": 5}
    assert second == common | {"max_tokens": 9}


# secrets


def test_api_key_is_sent_and_appears_in_no_message(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    with FakeJudge(Sure(1.0), api_key="sk-very-secret") as judge:
        assert endpoint(judge.base_url, "JUDGE_KEY").complete(MESSAGES, 1).text == "Yes"
    with FakeJudge(Sure(1.0), api_key="another") as judge, pytest.raises(ScoringFailed) as failed:
        endpoint(judge.base_url, "JUDGE_KEY").complete(MESSAGES, 1)
    assert failed.value.kind == "http_401"
    assert "sk-very-secret" not in str(failed.value) and "***" in str(failed.value)
    assert failed.value.__cause__ is None


KEY = "sk-very/secret+of=mine"
ECHOES = {
    "a text as a success": Sends(f"invalid key {KEY}".encode()),
    "the key alone, after blanks": Sends(b" " * 50 + KEY.encode() * 9),
    "a refusal by the judge": completion(message={"content": None, "refusal": "x" * 185 + KEY}),
    "a token above 0": top({"token": KEY, "logprob": 0.7}),
    "a token of a list": top({"token": [KEY], "logprob": -1}),
    "a page": Refuses(401, f"<p>{KEY}".encode()),
    "where a message is cut": Refuses(401, b"x" * 262 + KEY.encode()),
    "where reading stops, behind blanks": Refuses(401, b" " * (4096 - 12) + KEY.encode() * 2),
    "as PHP writes JSON": Refuses(403, json.dumps(KEY).replace("/", "\\/").encode()),
    "as a part of a URL": Refuses(403, b"/login?key=sk-very%2Fsecret%2Bof%3Dmine"),
}


@pytest.mark.parametrize("name", ECHOES)
def test_error_messages_hold_no_part_of_the_key(name, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with FakeJudge(ECHOES[name]) as judge, pytest.raises(ScoringFailed) as failed:
        endpoint(judge.base_url, "JUDGE_KEY").complete(MESSAGES, 1, logprobs=True)
    assert "sk-v" not in str(failed.value) and "secret" not in str(failed.value), failed.value
    assert name == "where a message is cut" or "***" in str(failed.value), "a control: the key was there"


@pytest.mark.parametrize("length", range(230, 301, 3))
def test_truncated_messages_hold_no_part_of_the_key(length, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with FakeJudge(Refuses(401, b"x" * length + KEY.encode())) as judge, pytest.raises(ScoringFailed) as failed:
        endpoint(judge.base_url, "JUDGE_KEY").complete(MESSAGES, 1)
    assert "sk-v" not in str(failed.value)


def test_replies_are_redacted_of_the_key(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with FakeJudge(Says(f"I was called with {KEY}")) as judge:
        assert endpoint(judge.base_url, "JUDGE_KEY").complete(MESSAGES, 9).text == "I was called with ***"
    monkeypatch.setenv("JUDGE_KEY", "1")  # a placeholder
    with FakeJudge(Says("1 > 2")) as judge:
        assert endpoint(judge.base_url, "JUDGE_KEY").complete(MESSAGES, 9).text == "1 > 2"


def test_trailing_newlines_of_the_key_are_removed(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", f" {KEY}\n")
    with FakeJudge(Sure(1.0), api_key=KEY) as judge:
        assert endpoint(judge.base_url, "JUDGE_KEY").complete(MESSAGES, 1).text == "Yes"


@pytest.mark.parametrize("key", ["sk-\x01secret", "sk-secret\nX-Other: 1", "sk-секрет-secret", "sk secret"])
def test_keys_invalid_in_headers_are_rejected(key, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", key)
    with pytest.raises(RewardError, match="JUDGE_KEY holds") as refused:
        endpoint("http://127.0.0.1:1", "JUDGE_KEY")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("key", ["", KEY])
def test_environment_of_openai_is_not_sent(key, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "of-another-service")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: of-another-service\nX-Mine: of-another-service")
    monkeypatch.setenv("JUDGE_KEY", key)
    with FakeJudge(Sure(1.0), api_key=key) as judge:
        endpoint(judge.base_url, "JUDGE_KEY" if key else "").complete(MESSAGES, 1)
    headers = {name.lower(): value for name, value in judge.headers[0].items()}
    assert "of-another-service" not in json.dumps([headers, *judge.requests])
    assert headers.get("authorization") == (f"Bearer {key}" if key else None)


def test_pickled_endpoints_send_equal_requests_without_holding_the_key(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    with FakeJudge(Sure(1.0), api_key="sk-very-secret") as judge:
        first = endpoint(judge.base_url, "JUDGE_KEY")
        first.complete(MESSAGES, 1)
        packed = pickle.dumps(first)
        assert b"sk-very-secret" not in packed
        assert pickle.loads(packed).complete(MESSAGES, 1).text == "Yes"


# settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "127.0.0.1:8000"}, "base_url is '127.0.0.1:8000'"),
        ({"base_url": "ftp://host/v1"}, "it must be a URL"),
        ({"base_url": "http://user:sk-1@host/v1"}, "api_key_env"),
        ({"base_url": "http://host/v1?key=sk-1"}, "api_key_env"),
        ({"base_url": "http://host/v1", "timeout_s": 0}, "timeout_s is 0"),
        ({"base_url": "http://host/v1", "timeout_s": float("nan")}, "timeout_s is nan"),
        ({"base_url": "http://host/v1", "api_key_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(RewardError, match=message) as refused:
        endpoint(**settings)
    assert "sk-1" not in str(refused.value)


def test_concurrent_calls_keep_their_order_and_fail_separately():
    def call(number):
        if number % 3 == 1:
            raise ScoringFailed(str(number))
        return number

    found = endpoint("http://127.0.0.1:1").run_all([lambda n=n: call(n) for n in range(20)])
    assert [str(each) for each in found] == [str(n) for n in range(20)]
    assert all(isinstance(each, ScoringFailed) == (n % 3 == 1) for n, each in enumerate(found))


def test_requests_are_concurrent_up_to_the_limit():
    numbers = itertools.count()
    with FakeJudge(lambda _: Says(str(next(numbers))), delay_s=0.05) as judge:
        ask = endpoint(judge.base_url, concurrency=4)
        found = ask.run_all([lambda: ask.complete(MESSAGES, 1) for _ in range(12)])
    assert sorted(int(reply.text) for reply in found) == list(range(12))
    assert 2 <= judge.most_at_once <= 4
