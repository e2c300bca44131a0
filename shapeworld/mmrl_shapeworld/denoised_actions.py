"""A policy that denoises actions in a small world: decisions are environment steps times denoising steps (pi_RL).

A point walks to a goal in `MOVES` moves. Each move is an action of two numbers, which a flow draws from noise in
`STEPS` denoising steps, given where point and goal are. The flow imitates a careless walker first. Then it is trained
by GRPO on whether the point arrives: an episode is one row, whose decisions are the denoising steps of all its moves,
and its reward is known after the last of them (arXiv:2510.25889; the ways to explore are `mmrl`'s own transitions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmrl.algorithms import clipped_policy_loss, grpo_advantages
from mmrl.generation.diffusion.learned_noise import LearnedNoiseTransition, NoiseLevelNetwork, with_learned_noise
from mmrl.generation.diffusion.transitions import ODE, FlowSDE, NoisyODE, Transition
from mmrl_shapeworld.line_flow import density_gap, marginal_gap

Sampler = Literal["noise", "sde", "ode"]
"""Flow-Noise, whose noise level is trained; Flow-SDE; or no exploration."""
MOVES, STEPS = 4, 4
SIGMAS = tuple(1 - step / STEPS for step in range(STEPS + 1))
"""Noise levels of the denoising steps of a move, from noise to the action."""
ACTION, SEEN = 2, 4
"""Numbers of an action; and of what is seen, the way to the goal and the place of the point."""
RADIUS = 0.1
"""The largest distance from the goal at which the point has arrived."""
TURNED, SHAKEN = 0.7, 0.25
"""The angle by which the careless walker always turns away, in radians, and the standard deviation of its moves."""
LEVELS, START = (0.05, 0.8), 0.3
"""The bounds of Flow-Noise's noise level, and where it begins."""
SDE_LEVEL, CLIP = 0.5, 0.2


class ActionFlow(nn.Module):
    """The velocity of an action on its way from noise, given what is seen."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(ACTION + SEEN + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()),
            nn.Linear(width, ACTION),
        )

    def forward(self, x: Tensor, sigma: float | Tensor, seen: Tensor) -> Tensor:  # [N, 2], [N, 1], [N, 4] -> [N, 2]
        """Return the velocity, which points from the action to the noise."""
        level = torch.as_tensor(sigma, dtype=x.dtype).expand(len(x), 1)
        found: Tensor = self.layers(torch.cat([x, seen, level], dim=1))
        return found


@dataclass(frozen=True)
class WalkRows:
    """The episodes of a rollout. T counts the denoising steps of all moves, end to end."""

    seen: Tensor  # [B, MOVES, 4]
    latents: Tensor  # [B, MOVES, STEPS + 1, 2]; the last is the action
    log_probs: Tensor  # [B, T]; 0 where a step is no decision
    rewards: Tensor  # [B]; 1 where the point has arrived


def starts(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:  # [N, 2] each
    """Return places of points and goals, drawn from the square of side 2."""
    places = torch.rand(2, count, ACTION, generator=generator) * 2 - 1
    return places[0], places[1]


def see(points: Tensor, goals: Tensor) -> Tensor:  # [N, 2] each -> [N, 4]
    """Return what the policy sees."""
    return torch.cat([goals - points, points], dim=1)


def arrived(points: Tensor, goals: Tensor) -> Tensor:  # [N, 2] each -> [N] float32
    """Return 1 where a point is near its goal."""
    return ((points - goals).norm(dim=1) < RADIUS).float()


def careless_moves(seen: Tensor, generator: torch.Generator) -> Tensor:  # [N, 4] -> [N, 2]
    """Return the moves of a walker who turns away from the goal by the same angle each time, and shakes."""
    angle = torch.tensor(TURNED)
    turned = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    return seen[:, :ACTION] @ turned.T + SHAKEN * torch.randn(len(seen), ACTION, generator=generator)


def imitate(flow: ActionFlow, generator: torch.Generator, updates: int = 500, batch: int = 512) -> None:
    """Train a flow on the careless walker's moves, by flow matching."""
    optimizer = torch.optim.Adam(flow.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        seen = see(*starts(batch, generator))
        action, noise = careless_moves(seen, generator), torch.randn(batch, ACTION, generator=generator)
        sigma = torch.rand(batch, 1, generator=generator)
        loss = F.mse_loss(flow((1 - sigma) * action + sigma * noise, sigma, seen), noise - action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def transition_of(sampler: Sampler) -> Transition:
    """Return the Gaussian of a denoising step."""
    if sampler == "noise":
        return with_learned_noise(NoisyODE(START), NoiseLevelNetwork(*LEVELS, START, 16, "latents"))
    return FlowSDE(SDE_LEVEL, SIGMAS[1]) if sampler == "sde" else ODE()


def is_decision(transition: Transition, step: int) -> bool:
    """Return whether a denoising step is drawn: all but the last are, and with Flow-Noise the last one, too."""
    base = transition.base if isinstance(transition, LearnedNoiseTransition) else transition
    return not isinstance(base, ODE) and (base.has_final_noise or step < STEPS - 1)


def log_density(transition: Transition, x_next: Tensor, mean: Tensor, std: float | Tensor) -> Tensor:  # -> [N]
    """Return the log-density of a step, which is the sum over the numbers of an action, not their mean."""
    return transition.log_prob(x_next, mean, std) * x_next[0].numel()


@torch.no_grad()
def walk(
    flow: ActionFlow, transition: Transition, points: Tensor, goals: Tensor, generator: torch.Generator
) -> WalkRows:
    """Return an episode from each of the starts."""
    all_seen, all_latents, log_probs = [], [], []
    for _ in range(MOVES):
        seen = see(points, goals)
        x = torch.randn(len(points), ACTION, generator=generator)
        latents = [x]
        for step, (sigma, sigma_next) in enumerate(pairwise(SIGMAS)):
            velocity = flow(x, sigma, seen)
            logs = torch.zeros(len(x))
            if is_decision(transition, step):
                mean, std = transition.moments(x, velocity, sigma, sigma_next)
                x = mean + std * torch.randn(mean.shape, generator=generator)
                logs = log_density(transition, x, mean, std)
            else:
                x = ODE().moments(x, velocity, sigma, sigma_next)[0]
            latents.append(x)
            log_probs.append(logs)
        points = points + x
        all_seen.append(seen)
        all_latents.append(torch.stack(latents, dim=1))
    return WalkRows(
        torch.stack(all_seen, dim=1),
        torch.stack(all_latents, dim=1),
        torch.stack(log_probs, dim=1),
        arrived(points, goals),
    )


def replayed(flow: ActionFlow, transition: Transition, rows: WalkRows) -> Tensor:  # [B, T]
    """Return the log-densities of the decisions of recorded episodes, with gradients."""
    seen = rows.seen.flatten(0, 1)
    found = []
    for step, (sigma, sigma_next) in enumerate(pairwise(SIGMAS)):
        x, x_next = (rows.latents[:, :, number].flatten(0, 1) for number in (step, step + 1))
        if is_decision(transition, step):
            mean, std = transition.moments(x, flow(x, sigma, seen), sigma, sigma_next)
            found.append(log_density(transition, x_next, mean, std))
        else:
            found.append(torch.zeros(len(x)))
    return torch.stack(found, dim=1).view(len(rows.rewards), MOVES * STEPS)


def reinforce(
    flow: ActionFlow,
    transition: Transition,
    generator: torch.Generator,
    iterations: int,
    groups: int = 32,
    group_size: int = 8,
    epochs: int = 4,
    lr: float = 1e-3,
) -> list[float]:
    """Train a flow, and noise levels that are trained, by GRPO; return the share that arrived in each iteration."""
    trained = [*flow.parameters()]
    if isinstance(transition, LearnedNoiseTransition):
        trained += transition.levels.parameters()
    optimizer = torch.optim.Adam(trained, lr)
    group_index = torch.arange(groups).repeat_interleave(group_size)
    drawn = torch.tensor([is_decision(transition, step) for step in range(STEPS)]).repeat(MOVES)
    drawn = drawn.expand(groups * group_size, -1)
    shares = []
    for _ in range(iterations):
        points, goals = (each.repeat_interleave(group_size, dim=0) for each in starts(groups, generator))
        rows = walk(flow, transition, points, goals, generator)
        advantages = grpo_advantages(rows.rewards, group_index, std="group", ddof=0)[:, None].expand_as(drawn)
        for _ in range(epochs):
            now = replayed(flow, transition, rows)
            terms = clipped_policy_loss(now, rows.log_probs, advantages, drawn, CLIP, CLIP).loss
            optimizer.zero_grad()
            (terms.sum() / drawn.sum()).backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
        shares.append(rows.rewards.mean().item())
    return shares


def exploration(seed: int, sampler: Sampler, iterations: int, episodes: int = 512) -> dict[str, Sequence[float]]:
    """Return what is known of the density and the marginals of a sampler, and what training with it reaches.

    Args:
        seed: of the imitated flow, which all samplers share, and of all draws.
        sampler: noise, sde or ode.
        iterations: of GRPO.
        episodes: that are judged, along the ODE.

    Returns:
        `success`, 1 for each judged episode that arrived; `density_gap` and `marginal_gap` of the sampler as it is
        after training (`mmrl_shapeworld.line_flow`).
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    flow, transition = ActionFlow(), transition_of(sampler)
    imitate(flow, generator)
    reinforce(flow, transition, generator, iterations)
    judged = torch.Generator().manual_seed(10_000 + seed)
    success = walk(flow, ODE(), *starts(episodes, judged), judged).rewards
    return {
        "success": success.tolist(),
        "density_gap": density_gap(transition, lambda step: is_decision(transition, step), SIGMAS, judged),
        "marginal_gap": marginal_gap(transition, judged),
    }
