"""The work of a reward service: each request is scored once, in order, by threads that hold the models."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from mmrl.rewards.core.executor import DaemonPool, RewardWorker, WeightedReward
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed, Status
from mmrl.rewards.core.reward_io import RewardOutput
from mmrl.rewards.service.score_messages import ScoreRequest

KEPT = 256
"""Finished requests whose scores are kept for a client that asks again, because the response did not reach it."""


class QueueFull(RuntimeError):
    """No further request can wait; `retry_after_s` is when to send it again."""

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} requests wait; send it again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass
class ServiceCounts:
    """Counts since the start of a service, by reward."""

    requests: Counter[str] = field(default_factory=Counter)
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)  # (reward, status)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # of scoring
    repeated: Counter[str] = field(default_factory=Counter)  # requests that were answered with scores that were there
    abandoned: Counter[str] = field(default_factory=Counter)  # requests whose client left before they were begun


class ScoreQueue:
    """Rewards that score one request after another. Thread-safe.

        queue = ScoreQueue([load("clip_score")], waiting=64)
        queue.submit("clip_score", request).result()

    All rewards share `threads` threads: with one, the models of a device never compute at the same time, and need the
    memory of one batch. A request is scored once however often it is sent: the same `id` for the same reward gets the
    same future, or the scores that are kept.
    """

    def __init__(self, rewards: Sequence[Reward], waiting: int = 64, threads: int = 1) -> None:
        """
        Args:
            rewards: each with another name.
            waiting: the largest number of requests that wait or are scored.
            threads: the number of requests that are scored at once.

        Raises:
            RewardError: two rewards have one name, one keeps a state between batches, which clients could not save, or
                one scores with models of a run, which a service has not.
        """
        names = Counter(reward.name for reward in rewards)
        if twice := [name for name, count in names.items() if count > 1]:
            raise RewardError(f"two rewards are called {twice[0]!r}: serve them from two ports")
        for reward in rewards:
            if type(reward).state_dict is not Reward.state_dict:
                raise RewardError(
                    f"{reward.name} keeps a state between batches, which belongs into the checkpoints of its run: "
                    "use it in the run, not in a service"
                )
            if reward.models:
                raise RewardError(
                    f"{reward.name} scores with models of a run ({', '.join(reward.models)}), which a service has not: "
                    "use it in the run"
                )
        self.rewards: Mapping[str, Reward] = {reward.name: reward for reward in rewards}
        self.counts = ServiceCounts()
        # Retries are the client's, which knows how long it can wait.
        self._workers = {reward.name: RewardWorker(WeightedReward(reward, retries=0), None) for reward in rewards}
        self._waiting, self._threads = waiting, threads
        self._pool = DaemonPool(threads, "score")
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], Future[RewardOutput]] = {}
        self._senders: Counter[tuple[str, str]] = Counter()  # that wait for each of them
        self._kept: OrderedDict[tuple[str, str], RewardOutput] = OrderedDict()

    @property
    def load(self) -> int:
        """The number of requests that wait or are scored."""
        return len(self._open)

    def submit(self, name: str, request: ScoreRequest) -> Future[RewardOutput]:
        """Return the scores of a request, now or later.

        Raises:
            KeyError: there is no such reward.
            QueueFull: too many requests wait.
        """
        worker, key = self._workers[name], (name, request.id)
        with self._lock:
            self.counts.requests[name] += 1
            if key in self._kept:
                self.counts.repeated[name] += 1
                done: Future[RewardOutput] = Future()
                done.set_result(self._kept[key])
                return done
            if key in self._open:
                self.counts.repeated[name] += 1
                self._senders[key] += 1
                return self._open[key]
            if len(self._open) >= self._waiting:
                raise QueueFull(len(self._open), self._seconds_to_wait())
            future: Future[RewardOutput] = Future()
            self._open[key], self._senders[key] = future, 1
        self._pool.submit(lambda: self._score(worker, key, request, future))
        return future

    def abandon(self, name: str, request: ScoreRequest) -> None:
        """Leave out a request whose client has gone, unless it is being scored: then its scores are kept.

        A client that was too impatient may have sent it again: it is left out once no sender waits for it.
        """
        key = name, request.id
        with self._lock:
            if (future := self._open.get(key)) is None:
                return
            self._senders[key] -= 1
            if self._senders[key] < 1 and future.cancel():
                self._close(key)
                self.counts.abandoned[name] += 1

    def close(self) -> None:
        """Start no further work."""
        self._pool.close()
        for worker in self._workers.values():
            worker.close()

    def _score(
        self, worker: RewardWorker, key: tuple[str, str], request: ScoreRequest, future: Future[RewardOutput]
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        started = time.perf_counter()
        try:
            output = worker.score(request.answers, request.context)
        except BaseException as err:  # a border: the client gets it, and the thread goes on
            with self._lock:
                self._close(key)
            future.set_exception(err if isinstance(err, RewardError) else ScoringFailed(f"{type(err).__name__}: {err}"))
            return
        name = key[0]
        with self._lock:
            self._close(key)
            if not any(failure.transient for row in output.failures for failure in row.values()):
                self._kept[key] = output  # else the client scores again
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self.counts.seconds[name] += time.perf_counter() - started
            for status in output.status[name]:
                self.counts.answers[name, str(Status(status))] += 1
        future.set_result(output)

    def _close(self, key: tuple[str, str]) -> None:
        """Forget a request that is scored or left out, and who waits for it; the lock is held."""
        self._open.pop(key, None)
        self._senders.pop(key, None)

    def _seconds_to_wait(self) -> int:
        """Return the seconds after which half of the queue is done, by the mean time of a request so far."""
        done = sum(self.counts.requests.values()) - len(self._open)
        mean = sum(self.counts.seconds.values()) / done if done > 0 else 1.0
        return max(1, round(mean * len(self._open) / 2 / self._threads))
