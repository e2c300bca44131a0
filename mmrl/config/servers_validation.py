"""Validation of `run.servers` with the policy, the sampling and the algorithm of a run."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.servers import ServersConfig
from mmrl.config.train import TrainConfig


def server_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each problem; none without servers."""
    servers = config.run.servers
    if servers is None:
        return
    if not isinstance(config.policy, VLMConfig):
        yield f"run.servers: servers write the answers of a policy of kind vlm, and this one is of {config.policy.kind}"
        return
    if servers.file is not None and servers.urls:
        yield "run.servers.file: the servers are named in it or in run.servers.urls: leave one of the two out"
    if servers.file is None and not servers.urls:
        yield "run.servers.urls: name a server, or a file of servers in run.servers.file, or leave run.servers out"
    if len(set(servers.urls)) < len(servers.urls):
        yield "run.servers.urls: a server is there twice: name each once"
    for number, address in enumerate(map(urlsplit, servers.urls)):
        if address.username or address.password or address.query or address.fragment:
            yield (
                f"run.servers.urls.{number}: it has a user, a password or a query: put the key into an environment "
                "variable, and name that in run.servers.api_key_env"
            )
    if (servers.weights == "lora") != (config.policy.train == "lora"):
        wanted = "lora" if config.policy.train == "lora" else "folder or nccl"
        yield f"run.servers.weights: policy.train is {config.policy.train}, which goes with {wanted}"
    if config.algorithm.experience != "rollouts":
        yield f"run.servers: {config.algorithm.name} samples no answers: leave it out"
    elif isinstance(config.algorithm, PolicyGradientConfig) and config.algorithm.mismatch is None:
        yield (
            "algorithm.mismatch is missing: servers compute other log-probabilities than the trainer, which must be "
            "corrected: set algorithm.mismatch.cap=2.0"
        )
    yield from _sampling_errors(config.sampling)
    yield from _place_errors(config, servers)


def _sampling_errors(sampling: object) -> Iterator[str]:
    if not isinstance(sampling, TokenSamplingConfig):
        return
    if sampling.drafts is not None:
        yield "sampling.drafts: the drafter of a server is set on its command line: leave it out"
    for key, is_set in (("top_p", sampling.top_p < 1), ("top_k", sampling.top_k is not None)):
        if is_set:
            yield (
                f"sampling.{key}: the log-probabilities of a server are those after {key}, and the trainer's are "
                "those before it: leave it out with run.servers"
            )


def _place_errors(config: TrainConfig, servers: ServersConfig) -> Iterator[str]:
    if config.run.place in ("window", "strict"):
        yield (
            f"run.place: {config.run.place} divides the model over processes, and run.servers takes it from one: "
            "choose auto"
        )
    if servers.weights == "nccl" and servers.file is not None:
        yield "run.servers.file: nccl connects the trainer with servers that are known before: choose folder"
    if servers.weights == "nccl" and config.run.overlap.is_on:
        yield (
            "run.servers.weights: nccl sends the trainer's own parameters, and with run.overlap servers get those of "
            "a copy: choose folder"
        )
    if servers.weights == "nccl" and config.policy.device == "cpu":
        yield "run.servers.weights: nccl goes from GPU to GPU, and policy.device is cpu: choose folder"
