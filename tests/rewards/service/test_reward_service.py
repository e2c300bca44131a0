"""The process of a service, its limits, and clients that are killed, slow, or send twice."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

import httpx
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.rewards import RewardSuite, ScoreCache, WeightedReward, load
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import RewardContext
from mmrl.rewards.service.remote_reward import RemoteReward
from mmrl.rewards.service.score_messages import ScoreRequest, decode_output, encode_request
from mmrl.rewards.service.score_queue import QueueFull, ScoreQueue
from tests.rewards.service.served_reward import Remembers, TextLength, served, text_input

SCORE = "/v1/rewards/text_length/score"


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """A service that takes four requests, of one megabyte, whose bodies come within a second."""
    limits = ("--waiting", "4", "--max-megabytes", "1", "--body-seconds", "1")
    with served(*limits) as (_, url):
        yield url


def request(*texts: str, name: str = "r") -> ScoreRequest:
    return ScoreRequest(name, tuple(text_input(text, row) for row, text in enumerate(texts)), RewardContext())


def metric(url: str, line: str) -> float:
    """Return a number of the service's metrics; 0 if it is not there."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next((float(each.rpartition(" ")[2]) for each in lines if each.startswith(line)), 0.0)


def test_scores_and_statuses_are_those_in_process(service):
    batch = [text_input(text, row) for row, text in enumerate(["four", "bad", "broken", ""])]
    remote, local = RemoteReward(service, "text_length").score(batch), TextLength().score(batch)
    assert remote.values.keys() == local.values.keys() == {"text_length", "third"}
    for name in local.values:
        np.testing.assert_array_equal(remote.values[name], local.values[name])
    assert (remote.status, remote.failures) == (local.status, local.failures)
    assert remote.status["text_length"] == [Status.OK, Status.INVALID, Status.ERROR, Status.OK]


def test_the_client_has_the_range_and_the_name_of_the_service_s_reward(service):
    reward = load("remote", url=service, reward="text_length")
    assert (reward.name, reward.range, reward.needs) == ("text_length", (0.0, 100.0), ("text",))
    assert reward.spec.range == (0.0, 100.0)
    with pytest.raises(RewardError, match="has no reward 'clip'; it has text_length"):
        RemoteReward(service, "clip")
    with pytest.raises(RewardError, match="start one with: mmrl rewards serve"):
        RemoteReward("http://127.0.0.1:9", "clip")


@pytest.mark.integration
def test_health_and_unknown_rewards(service):
    assert httpx.get(f"{service}/health").json()["status"] == "ok"
    assert httpx.post(f"{service}/v1/rewards/other/score", content=b"{}").status_code == 404
    assert httpx.post(service + SCORE, content=b"\x80\x04K\x01.").status_code == 400


@pytest.mark.parametrize("drips", [False, True])
def test_a_service_that_hangs_fails_after_three_sendings_without_another_try(service, monkeypatch, drips):
    reward = RemoteReward(service, "text_length", timeout_s=0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_slowly() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=drip, args=(connection,), daemon=True).start()

        def drip(connection: socket.socket) -> None:
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" if drips else b"")
                for _ in range(60):
                    time.sleep(0.1)
                    try:
                        connection.sendall(b" " if drips else b"")
                    except OSError:
                        return

        threading.Thread(target=answer_slowly, daemon=True).start()
        monkeypatch.setattr(reward, "_url", f"http://127.0.0.1:{server.getsockname()[1]}")
        started = time.monotonic()
        output = RewardSuite([WeightedReward(reward, retries=3, pause_s=0.0)]).score([text_input("four")])
        assert 0.5 < time.monotonic() - started < 10
        assert output.failures[0]["text_length"].kind == "timeout"
        detail = output.detail[0]["text_length"]
    assert f"{reward._url} gave no scores of text_length within 0.6 s" in detail and "raise timeout_s" in detail


@pytest.mark.integration
def test_large_and_slow_bodies_are_refused(service):
    assert httpx.post(service + SCORE, content=b" " * (2**20 + 1)).status_code == 413

    def chunks(count: int, pause: float) -> Iterator[bytes]:
        for _ in range(count):
            yield b" " * 2**18
            time.sleep(pause)

    assert httpx.post(service + SCORE, content=chunks(6, 0)).status_code == 413  # its length is not stated
    assert httpx.post(service + SCORE, content=chunks(3, 0.8)).status_code == 408


def test_a_full_queue_says_when_to_ask_again(service, tmp_path):
    scored = tmp_path / "scored"
    bodies = [encode_request(request(f"until {scored}", name=f"full-{each}")) for each in range(8)]
    with ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(httpx.post, service + SCORE, content=body, timeout=60) for body in bodies]
        responses = as_completed(sent)
        refused = [next(responses).result() for _ in range(4)]  # at once, while the others wait
        scored.touch()
        assert [each.result().status_code for each in responses] == [200] * 4
    assert [each.status_code for each in refused] == [429] * 4
    assert int(refused[0].headers["retry-after"]) >= 1 and "send it again" in refused[0].json()["error"]


@pytest.mark.integration
def test_one_request_sent_several_times_is_scored_once(service):
    line = 'mmrl_rewards_answers_total{reward="text_length",status="ok"}'
    body, before = encode_request(request("slow 0.2", name="twice")), metric(service, line)
    with ThreadPoolExecutor(3) as threads:
        responses = list(threads.map(lambda _: httpx.post(service + SCORE, content=body), range(3)))
    assert {decode_output(each.content, 1).values["text_length"][0] for each in responses} == {8.0}
    assert httpx.post(service + SCORE, content=body).status_code == 200  # after it is done
    assert metric(service, line) == before + 1


@pytest.mark.integration
def test_clients_that_are_killed_and_wait_lose_and_double_nothing():
    """Half of 40 requests are first sent by clients that go before the response; every answer is scored once."""
    with served() as (_, url):
        address = urllib.parse.urlsplit(url)

        def ask(number: int) -> float:
            body = encode_request(request("x" * number, name=f"load-{number}"))
            if number % 2:  # a client that sends all and goes
                with socket.create_connection((address.hostname, address.port)) as gone:
                    gone.sendall(
                        f"POST {SCORE} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
                    )
            response = httpx.post(url + SCORE, content=body, timeout=20)
            assert response.status_code == 200, response.text
            return float(decode_output(response.content, 1).values["text_length"][0])

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(ask, range(40))) == [float(number) for number in range(40)]
        done = metric(url, 'mmrl_rewards_answers_total{reward="text_length",status="ok"}')
        left = metric(url, 'mmrl_rewards_abandoned_requests_total{reward="text_length"}')
        assert 40 - left <= done <= 40


@pytest.mark.integration
def test_a_service_that_is_killed_and_started_again_loses_nothing():
    with served() as (first, url):
        reward = WeightedReward(RemoteReward(url, "text_length"), retries=6, pause_s=0.2, batch_size=1)
        batch = [text_input(f"slow {0.1 + each / 100}", each) for each in range(6)]
        found = {}
        scoring = threading.Thread(target=lambda: found.update(output=RewardSuite([reward]).score(batch)))
        scoring.start()
        time.sleep(0.3)
        first.send(signal.SIGKILL)
        first.wait()
        with served(port=urllib.parse.urlsplit(url).port or 0):
            scoring.join(30)
    np.testing.assert_array_equal(found["output"].values["text_length"], [len(each.text) for each in batch])


@pytest.mark.integration
def test_cached_scores_are_those_of_the_arguments_that_the_service_has_now(tmp_path):
    """The same address and name with another argument is another reward."""
    cache, found, port = ScoreCache(tmp_path / "scores"), [], 0
    for limit in (4, 4, 8):
        arguments = ("--arg", f"soft_overlong.limit={limit}", "--arg", "soft_overlong.cache=1")
        with served(*arguments, reward="soft_overlong", port=port) as (_, url):
            port = urllib.parse.urlsplit(url).port or 0
            item = replace(text_input("x"), metadata={"tokens": [0] * 6})
            suite = RewardSuite([(RemoteReward(url, "soft_overlong"), 1.0)], cache=cache)
            found.append(suite.score([item]).values["soft_overlong"].item())
            suite.close()
    assert found[0] == found[1] < found[2] == 0 and cache.hits == 1
    cache.close()


@pytest.mark.integration
def test_a_key_is_required_and_never_printed(monkeypatch):
    monkeypatch.setenv("SERVICE_KEY", "secret-key-1")
    with served("--api-key-env", "SERVICE_KEY") as (_, url):
        assert httpx.get(f"{url}/v1/rewards").status_code == 401
        assert httpx.post(url + SCORE, content=b"{}", headers={"authorization": "Bearer other"}).status_code == 401
        assert httpx.get(f"{url}/health").status_code == 200
        assert RemoteReward(url, "text_length", api_key_env="SERVICE_KEY").score_one(text_input("four")) == 4
        with pytest.raises(RewardError, match="HTTP 401") as refused:
            RemoteReward(url, "text_length")
    assert "secret" not in str(refused.value)


def test_without_a_key_only_this_machine_can_ask():
    result = CliRunner().invoke(app, ["rewards", "serve", "format", "--host", "0.0.0.0", "--port", "0"])
    assert result.exit_code == 1 and "--api-key-env" in result.stderr


@pytest.mark.integration
def test_paths_of_a_client_are_not_opened(tmp_path):
    """A path reaches the service under a key whose files the client does not send along; it is not opened there."""
    Image.new("RGB", (16, 16)).save(tmp_path / "secret.png")
    body = json.loads(encode_request(request("x")))
    body["answers"][0] |= {"references": {"answer": str(tmp_path / "secret.png"), "size": [16, 16]}, "text": "[]"}
    with served(reward="mask_iou") as (_, url):
        response = httpx.post(f"{url}/v1/rewards/mask_iou/score", content=json.dumps(body).encode())
    output = decode_output(response.content, 1)
    assert output.status["mask_iou"] == [Status.ERROR]
    assert "a service opens no files that a client names" in output.detail[0]["mask_iou"]


def test_rewards_that_need_their_run_are_refused():
    with pytest.raises(RewardError, match="keeps a state between batches"):
        ScoreQueue([Remembers()])
    with pytest.raises(RewardError, match="two rewards are called 'text_length'"):
        ScoreQueue([TextLength(), TextLength()])
    with pytest.raises(RewardError, match=r"reference_likelihood scores with models of a run \(policy\)"):
        ScoreQueue([load("reference_likelihood", model="policy")])


def test_a_request_whose_client_has_gone_is_left_out_before_it_is_begun():
    queue = ScoreQueue([TextLength()], waiting=2)
    first = queue.submit("text_length", request("slow 0.3", name="first"))
    second = queue.submit("text_length", request("four", name="second"))
    with pytest.raises(QueueFull):
        queue.submit("text_length", request("four", name="third"))
    queue.abandon("text_length", request(name="second"))
    assert second.cancelled()
    assert first.result().values["text_length"][0] == 8
    again = queue.submit("text_length", request("fives", name="second"))
    assert again.result().values["text_length"][0] == 5
    assert queue.counts.abandoned["text_length"] == 1 and sum(queue.counts.answers.values()) == 2
    queue.close()


def test_a_request_that_was_sent_again_is_not_left_out_with_its_first_sending():
    queue = ScoreQueue([TextLength()])
    first = queue.submit("text_length", request("slow 0.3", name="first"))
    waiting = [queue.submit("text_length", request("four", name="second")) for _ in range(2)]
    queue.abandon("text_length", request(name="second"))
    assert waiting[1].result(5).values["text_length"][0] == 4 and first.done()
    last = [queue.submit("text_length", request(text, name=text)) for text in ("slow 0.2", "gone", "gone")]
    for _ in range(2):
        queue.abandon("text_length", request(name="gone"))
    assert last[2].cancelled() and queue.counts.abandoned["text_length"] == 1 and queue.load <= 1
    last[0].result(5)
    queue.close()
