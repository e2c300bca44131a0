"""A road that others cross, and a car whose plans are drawn by a flow that imitates careless drivers.

The car drives along a road. At three places others cross it, each in its rhythm: a place is blocked for some
time, free for some, and so on. The car arrives if it reaches the end in time and is at no blocked place on the way. A
plan is the speed of each of the next `PLAN` moments; the car follows it for some of them and then takes another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

CROSSINGS = (3.0, 6.0, 9.0)
GOAL, TIME = 11.0, 24
"""The end of the road, and the moments in which it has to be reached. The highest speed is 1 a moment."""
PERIOD, BLOCKED = 8.0, 0.45
"""The moments of a rhythm, and the share of them in which a place is blocked."""
MARGIN = 0.35
"""The distance from a crossing up to which the car is at it."""
PLAN, SEEN = 8, 8
"""Numbers of a plan; and of what is seen: distance and rhythm of the next two crossings, way and time that are left."""
CARELESS = 0.25
"""The share of plans in which a driver looks at no crossing and takes the fastest."""
STEPS = 4
"""Denoising steps of a plan."""
SIGMAS = tuple(1 - step / STEPS for step in range(STEPS + 1))


@dataclass
class Cars:
    """B cars, each on its road, at one moment."""

    rhythms: Tensor  # [B, 3], the moment in its rhythm at which each crossing is at moment 0
    places: Tensor  # [B]
    time: int
    collided: Tensor  # [B] bool

    @classmethod
    def at_start(cls, rhythms: Tensor) -> Cars:
        """Return cars at the beginning of their roads."""
        return cls(rhythms, torch.zeros(len(rhythms)), 0, torch.zeros(len(rhythms), dtype=torch.bool))

    @property
    def arrived(self) -> Tensor:  # [B] bool
        """The cars that have reached the end without a collision."""
        return (self.places >= GOAL) & ~self.collided

    @property
    def driving(self) -> Tensor:  # [B] bool
        """The cars that are still on their way."""
        return (self.places < GOAL) & ~self.collided

    def follow(self, speeds: Tensor) -> Cars:  # [B, H]
        """Return the cars after H moments. Cars that collided, or have arrived, stay where they are."""
        places, collided, time = self.places, self.collided, self.time
        for moment in range(speeds.shape[1]):
            moving = (places < GOAL) & ~collided
            for half in (0.5, 1.0):  # a fast car must not jump over a crossing
                places = torch.where(moving, places + 0.5 * speeds[:, moment].clamp(0, 1), places)
                collided = collided | (moving & is_blocked(self.rhythms, places, time + moment + half))
        return Cars(self.rhythms, places, time + speeds.shape[1], collided)

    def look(self) -> Tensor:  # [B, SEEN]
        """Return what the drivers see."""
        crossings = torch.tensor([*CROSSINGS, 99.0, 99.0])
        first = (self.places[:, None] > crossings[:3] + MARGIN).sum(1)
        rhythms = torch.cat([self.rhythms, torch.zeros(len(self.places), 2)], dim=1)
        seen = []
        for ahead in (first, first + 1):
            distance = crossings[ahead] - self.places
            angle = (rhythms.gather(1, ahead[:, None])[:, 0] + self.time) * (2 * torch.pi / PERIOD)
            exists = (ahead < len(CROSSINGS)).float()
            seen += [(distance / 3).clamp(max=2), angle.sin() * exists, angle.cos() * exists]
        left = torch.full_like(self.places, 1 - self.time / TIME)
        return torch.stack([*seen, 1 - self.places / GOAL, left], dim=1)


def is_blocked(rhythms: Tensor, places: Tensor, time: float) -> Tensor:  # [B, 3], [B] -> [B] bool
    """Return whether each place is at a crossing that is blocked at this time."""
    near = (places[:, None] - torch.tensor(CROSSINGS)).abs() < MARGIN
    return (near & (((rhythms + time) % PERIOD) < BLOCKED * PERIOD)).any(1)


def draw_rhythms(count: int, generator: torch.Generator) -> Tensor:  # [N, 3]
    """Return roads."""
    return torch.rand(count, len(CROSSINGS), generator=generator) * PERIOD


def careless_plans(cars: Cars, generator: torch.Generator, tries: int = 24) -> Tensor:  # [B, PLAN]
    """Return plans of drivers who take the farthest of some plans that collides nowhere, or the fastest of them."""
    count = len(cars.places)
    two = torch.rand(count, tries, 2, generator=generator).repeat_interleave(PLAN // 2, dim=2)
    every = Cars(
        cars.rhythms.repeat_interleave(tries, 0),
        cars.places.repeat_interleave(tries),
        cars.time,
        torch.zeros(count * tries, dtype=torch.bool),
    ).follow(two.flatten(0, 1))
    safe = torch.where(every.collided.view(count, tries), -1.0, every.places.view(count, tries))
    careless = torch.rand(count, 1, generator=generator) < CARELESS
    worth = torch.where(careless, two.sum(-1), safe)
    chosen = two[torch.arange(count), worth.argmax(1)]
    return (chosen + 0.05 * torch.randn(chosen.shape, generator=generator)).clamp(0, 1)


class PlanFlow(nn.Module):
    """The velocity of a plan on its way from noise, given what is seen; plans are scaled to [-1, 1]."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(PLAN + SEEN + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()),
            nn.Linear(width, PLAN),
        )

    def forward(self, x: Tensor, sigma: float | Tensor, seen: Tensor) -> Tensor:  # [N, 8], [N, 1], [N, 8] -> [N, 8]
        """Return the velocity, which points from the plan to the noise."""
        level = torch.as_tensor(sigma, dtype=x.dtype).expand(len(x), 1)
        found: Tensor = self.layers(torch.cat([x, seen, level], dim=1))
        return found

    @torch.no_grad()
    def plans(self, seen: Tensor, generator: torch.Generator) -> Tensor:  # [N, SEEN] -> [N, PLAN]
        """Return a plan for each row, along the ODE."""
        x = torch.randn(len(seen), PLAN, generator=generator)
        for sigma in SIGMAS[:-1]:
            x = x - self(x, sigma, seen) / STEPS
        return x

    def matching_loss(self, seen: Tensor, plans: Tensor, generator: torch.Generator) -> Tensor:  # [N, ...] -> [N]
        """Return the error of velocities on noised plans."""
        noise = torch.randn(plans.shape, generator=generator)
        sigma = torch.rand(len(plans), 1, generator=generator)
        error = self((1 - sigma) * plans + sigma * noise, sigma, seen) - (noise - plans)
        return error.square().mean(1)


def speeds_of(plans: Tensor) -> Tensor:
    """Return the speeds of plans as a flow draws them."""
    return (plans + 1) / 2


def imitate(
    flow: PlanFlow, generator: torch.Generator, roads: int = 1024, updates: int = 1000, batch: int = 512
) -> None:
    """Train a flow on the plans of careless drivers, who follow each for half of its moments."""
    cars, seen, plans = Cars.at_start(draw_rhythms(roads, generator)), [], []
    while cars.time < TIME:
        chosen, driving = careless_plans(cars, generator), cars.driving
        seen.append(cars.look()[driving])
        plans.append(2 * chosen[driving] - 1)
        cars = cars.follow(chosen[:, : PLAN // 2])
    every, wanted = torch.cat(seen), torch.cat(plans)
    optimizer = torch.optim.Adam(flow.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        rows = torch.randint(len(every), (batch,), generator=generator)
        loss = flow.matching_loss(every[rows], wanted[rows], generator).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
