"""The process of a reward service."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from mmrl.api_key import ApiKey
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.service.reward_service import ServiceLimits, reward_service


def run_service(
    rewards: Sequence[Reward], limits: ServiceLimits, host: str = "127.0.0.1", port: int = 8765, api_key_env: str = ""
) -> None:
    """Score over HTTP until SIGINT or SIGTERM; requests that are being scored are finished first.

    Raises:
        RewardError: uvicorn is not installed, the address is not loopback and there is no key, or the rewards cannot
            be served.
        OSError: the address is taken.
    """
    try:
        key = ApiKey.read(api_key_env)
    except ValueError as err:
        raise RewardError(f"api_key_env: {err}") from None
    if not key.value and not is_loopback(host):
        raise RewardError(
            f"{host} can be reached from other machines: name the environment variable of a key that clients must "
            "send, with --api-key-env"
        )
    app = reward_service(rewards, limits, key)
    import uvicorn  # installed with starlette: `reward_service` has said so if it is not

    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as bound:
        address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
        print(f"{', '.join(reward.name for reward in rewards)} at {address}", flush=True)
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=30, h11_max_incomplete_event_size=65536
        )
        uvicorn.Server(config).run(sockets=[bound])


def is_loopback(host: str) -> bool:
    """Return True for an address that this machine alone reaches.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.2")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
