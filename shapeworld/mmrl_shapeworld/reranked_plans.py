"""An experiment for the study of RAD-2: a discriminator chooses among plans, and what came of it shifts the generator.

A flow that imitates careless drivers draws candidates, and a discriminator chooses one, which is followed for some
moments. The discriminator alone is trained by GRPO on whether the car arrives: it chooses one of eight, and no reward
reaches the numbers of a plan. A choice is held for several moments, so that a few decisions have all the credit (the
temporally consistent GRPO of RAD-2, arXiv:2604.15308). The generator is shifted by targets along the road alone: plans
that ended in a collision are slowed down before the crossing, those of cars that came too late are sped up, those of
arrivals stay what they are. `direct` trains the flow itself by GRPO through its denoising steps, on as many episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from mmrl.algorithms import clipped_policy_loss, grpo_advantages
from mmrl.generation.diffusion.transitions import FlowSDE
from mmrl_shapeworld.crossing_drives import (
    MARGIN,
    PERIOD,
    PLAN,
    SEEN,
    SIGMAS,
    STEPS,
    TIME,
    Cars,
    PlanFlow,
    draw_rhythms,
    imitate,
    speeds_of,
)

Method = Literal["imitation", "direct", "rerank", "rerank_and_shift"]
CANDIDATES = 8
MET = 6
"""Numbers of what a plan meets at a moment."""
CLIP = 0.2
FASTER = 1.2
"""The factor on the speeds of a plan that was too late."""
ROOM = 0.05
"""The distance before a crossing at which a plan that is slowed down ends."""


class Discriminator(nn.Module):
    """The score of a plan, given what is seen: of what it meets at each of its moments, and of how far it goes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.moment = nn.Sequential(
            *(nn.Linear(MET, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()), nn.Linear(width, 1)
        )
        self.way = nn.Sequential(nn.Linear(SEEN + 2, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, seen: Tensor, plans: Tensor) -> Tensor:  # [..., SEEN], [..., K, PLAN] -> [..., K]
        """Return the score of each of K plans."""
        met = met_by(seen, plans)
        wide = seen[..., None, :].expand(*plans.shape[:-1], SEEN)
        speeds = speeds_of(plans).clamp(0, 1)
        ways = torch.stack([speeds[..., : PLAN // 2].sum(-1), speeds.sum(-1)], dim=-1) / PLAN
        found: Tensor = self.moment(met)[..., 0].sum(-1) + self.way(torch.cat([wide, ways], dim=-1))[..., 0]
        return found


def met_by(seen: Tensor, plans: Tensor) -> Tensor:  # [..., SEEN], [..., K, PLAN] -> [..., K, PLAN, MET]
    """Return what a plan meets at each moment: distance and rhythm of the two crossings that are seen."""
    places = speeds_of(plans).clamp(0, 1).cumsum(-1)
    turn = torch.arange(1, PLAN + 1) * (2 * torch.pi / PERIOD)
    found = []
    for first in (0, 3):
        distance, sine, cosine = (seen[..., None, None, first + place] for place in range(3))
        found += [
            (3 * distance - places).clamp(-2, 2),
            (sine * turn.cos() + cosine * turn.sin()).expand_as(places),
            (cosine * turn.cos() - sine * turn.sin()).expand_as(places),
        ]
    return torch.stack(found, dim=-1)


@dataclass(frozen=True)
class ChosenDrives:
    """B episodes of D decisions, each a choice of one of K plans."""

    seen: Tensor  # [B, D, SEEN]
    candidates: Tensor  # [B, D, K, PLAN]
    chosen: Tensor  # [B, D] int64
    log_probs: Tensor  # [B, D]
    mask: Tensor  # [B, D] bool; False once a car has arrived or collided
    arrived: Tensor  # [B] bool
    collided: Tensor  # [B] bool

    def followed(self) -> Tensor:  # [B, D, PLAN]
        """Return the plans that were chosen."""
        place = self.chosen[..., None, None].expand(-1, -1, 1, PLAN)
        return self.candidates.gather(2, place)[:, :, 0]


@torch.no_grad()
def drive(
    flow: PlanFlow,
    judge: Discriminator | None,
    rhythms: Tensor,
    generator: torch.Generator,
    hold: int,
    greedy: bool = False,
) -> ChosenDrives:
    """Return an episode on each road. Without a discriminator the only candidate is followed."""
    cars, rows = Cars.at_start(rhythms), len(rhythms)
    seen, candidates, chosen, log_probs, mask = [], [], [], [], []
    count = 1 if judge is None else CANDIDATES
    while cars.time < TIME:
        look = cars.look()
        plans = flow.plans(look.repeat_interleave(count, 0), generator).view(rows, count, PLAN)
        logits = torch.zeros(rows, 1) if judge is None else judge(look, plans)
        logs = logits.log_softmax(1)
        pick = logits.argmax(1) if greedy else torch.multinomial(logs.exp(), 1, generator=generator)[:, 0]
        seen.append(look)
        candidates.append(plans)
        chosen.append(pick)
        log_probs.append(logs.gather(1, pick[:, None])[:, 0])
        mask.append(cars.driving)
        cars = cars.follow(speeds_of(plans[torch.arange(rows), pick])[:, :hold])
    looks, plans, picks, logs, alive = (
        torch.stack(each, dim=1) for each in (seen, candidates, chosen, log_probs, mask)
    )
    return ChosenDrives(looks, plans, picks, logs, alive, cars.arrived, cars.collided)


def shifted_targets(drives: ChosenDrives) -> tuple[Tensor, Tensor]:  # [N, SEEN], [N, PLAN]
    """Return what was seen and the plans that the generator is to draw then.

    The last plan of a car that collided is slowed down until it ends before the next crossing, or sped up if the car
    was on it already; all plans of a car that came too late are sped up; those of one that arrived stay.
    """
    speeds = speeds_of(drives.followed()).clamp(0, 1)
    last = torch.arange(drives.mask.shape[1]) == (drives.mask.sum(1) - 1)[:, None]
    room = 3 * drives.seen[..., 0] - MARGIN - ROOM
    braked = torch.where(room > 0, (room / speeds.sum(-1).clamp(min=1e-3)).clamp(max=1), FASTER)
    late = ~drives.collided & ~drives.arrived
    factor = torch.where(drives.collided[:, None], braked, torch.where(late[:, None], FASTER, 1.0))
    learnt = drives.mask & (~drives.collided[:, None] | last)
    targets = (speeds * factor[..., None]).clamp(0, 1)
    return drives.seen[learnt], 2 * targets[learnt] - 1


def train_discriminator(
    flow: PlanFlow,
    judge: Discriminator,
    generator: torch.Generator,
    iterations: int,
    shift: bool,
    hold: int = 4,
    groups: int = 16,
    lr: float = 1e-3,
    shift_lr: float = 1e-4,
    epochs: int = 4,
) -> list[float]:
    """Train a discriminator by GRPO, and with `shift` the flow on shifted targets; return the share that arrived."""
    optimizer = torch.optim.Adam(judge.parameters(), lr)
    of_flow = torch.optim.Adam(flow.parameters(), shift_lr)
    group_index = torch.arange(groups).repeat_interleave(CANDIDATES)
    shares = []
    for _ in range(iterations):
        drives = drive(flow, judge, draw_rhythms(groups, generator)[group_index], generator, hold)

        def replayed(counted: Tensor, drives: ChosenDrives = drives) -> Tensor:
            logs = judge(drives.seen[counted], drives.candidates[counted]).log_softmax(-1)
            return logs.gather(-1, drives.chosen[counted][:, None])[:, 0]

        reinforce(replayed, drives.log_probs, drives.mask, drives.arrived, group_index, optimizer, judge, epochs)
        if shift:
            seen, targets = shifted_targets(drives)
            for _ in range(epochs):
                of_flow.zero_grad()
                flow.matching_loss(seen, targets, generator).mean().backward()
                of_flow.step()
        shares.append(drives.arrived.float().mean().item())
    return shares


def train_directly(
    flow: PlanFlow,
    generator: torch.Generator,
    iterations: int,
    hold: int = 4,
    groups: int = 16,
    lr: float = 1e-3,
    level: float = 0.5,
    epochs: int = 4,
) -> list[float]:
    """Train a flow by GRPO through its denoising steps, on whether cars arrive; return the share that did."""
    transition = FlowSDE(level, SIGMAS[1])
    optimizer = torch.optim.Adam(flow.parameters(), lr)
    group_index = torch.arange(groups).repeat_interleave(CANDIDATES)
    shares = []
    for _ in range(iterations):
        cars = Cars.at_start(draw_rhythms(groups, generator)[group_index])
        seen, latents, mask = [], [], []
        with torch.no_grad():
            while cars.time < TIME:
                look, x = cars.look(), torch.randn(len(group_index), PLAN, generator=generator)
                path = [x]
                for sigma, sigma_next in pairwise(SIGMAS):
                    mean, std = transition.moments(x, flow(x, sigma, look), sigma, sigma_next)
                    drawn = mean + std * torch.randn(mean.shape, generator=generator)
                    x = drawn if sigma_next > 0 else x - flow(x, sigma, look) * sigma  # the last step adds no noise
                    path.append(x)
                seen.append(look)
                latents.append(torch.stack(path, dim=1))
                mask.append(cars.driving)
                cars = cars.follow(speeds_of(x)[:, :hold])
            looks, paths = torch.stack(seen, dim=1), torch.stack(latents, dim=1)  # [B, D, SEEN], [B, D, S + 1, PLAN]
            alive = torch.stack(mask, dim=1)

        def replayed(counted: Tensor, looks: Tensor = looks, paths: Tensor = paths) -> Tensor:
            plans = counted[:, :: STEPS - 1]  # [B, D]; the steps of a plan count together
            path, look, logs = paths[plans], looks[plans], []
            for step, (sigma, sigma_next) in enumerate(pairwise(SIGMAS[:-1])):
                x, following = path[:, step], path[:, step + 1]
                mean, std = transition.moments(x, flow(x, sigma, look), sigma, sigma_next)
                logs.append(transition.log_prob(following, mean, std) * PLAN)
            return torch.stack(logs, dim=1).flatten()

        drawn_steps = alive.repeat_interleave(STEPS - 1, dim=1)
        with torch.no_grad():
            before = replayed(torch.ones_like(drawn_steps)).view_as(drawn_steps)
        reinforce(replayed, before, drawn_steps, cars.arrived, group_index, optimizer, flow, epochs)
        shares.append(cars.arrived.float().mean().item())
    return shares


def reinforce(
    replayed: Callable[[Tensor], Tensor],  # [B, T] bool -> [N], the log-probabilities of its N decisions
    before: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
    arrived: Tensor,  # [B] bool
    group_index: Tensor,  # [B] int64
    optimizer: torch.optim.Optimizer,
    trained: nn.Module,
    epochs: int,
) -> None:
    """Take the steps of GRPO on recorded decisions, all of which have the advantage of their episode.

    Decisions without an advantage have no gradient, and are not computed again.
    """
    advantages = grpo_advantages(arrived.float(), group_index, std="group", ddof=0)[:, None].expand_as(before)
    counted = mask & (advantages != 0)
    old, wanted = before[counted][:, None], advantages[counted][:, None]
    for _ in range(epochs):
        terms = clipped_policy_loss(
            replayed(counted)[:, None], old, wanted, torch.ones_like(old, dtype=torch.bool), CLIP, CLIP
        ).loss
        optimizer.zero_grad()
        (terms.sum() / mask.sum()).backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()


@cache
def imitated(seed: int) -> PlanFlow:
    """Return the flow that imitates careless drivers; all methods start from a copy of it."""
    torch.manual_seed(seed)
    flow = PlanFlow()
    imitate(flow, torch.Generator().manual_seed(seed))
    return flow


def planned_drives(
    seed: int,
    method: Method,
    iterations: int = 60,
    repeats: int = 3,
    episodes: int = 256,
    hold: int = 4,
    lr: float = 1e-3,
    shift_lr: float = 1e-4,
    level: float = 0.5,
) -> dict[str, Sequence[float]]:
    """Train planners, and let each drive on roads that none was trained on.

    Args:
        seed: of the first planner; each repetition has another seed, flow and roads.
        method: what is trained.
        iterations: of training, with 128 episodes each.
        repeats: planners of a method, over which results spread.
        episodes: that each planner is measured on.
        hold: moments for which a chosen plan is followed.
        lr: of the discriminator, or of the flow that is trained directly.
        shift_lr: of the flow whose targets are shifted.
        level: of the noise with which the flow explores that is trained directly.

    Returns:
        `success` and `collision`: 1 for each episode in which the car arrived, or collided. `spread`: the standard
        deviation of the success over the planners.
    """
    success, collision, means = [], [], []
    for number in range(repeats):
        own = 100 * seed + number
        flow, judge = PlanFlow(), None
        flow.load_state_dict(imitated(own).state_dict())
        torch.manual_seed(own)
        generator = torch.Generator().manual_seed(own + 1)
        if method == "direct":
            train_directly(flow, generator, iterations, hold, lr=lr, level=level)
        elif method != "imitation":
            judge = Discriminator()
            shift = method == "rerank_and_shift"
            train_discriminator(flow, judge, generator, iterations, shift, hold, lr=lr, shift_lr=shift_lr)
        judged = torch.Generator().manual_seed(10_000_000 + own)
        drives = drive(flow, judge, draw_rhythms(episodes, judged), judged, hold, greedy=True)
        success += drives.arrived.float().tolist()
        collision += drives.collided.float().tolist()
        means.append(drives.arrived.float().mean())
    return {"success": success, "collision": collision, "spread": [torch.stack(means).std().item()]}
