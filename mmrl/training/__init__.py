"""The loop: experience, objectives, updates, checkpoints.

    trainer     collect experience, accumulate gradients, update, look, save
    experience  where training data comes from: fresh rollouts, scored; `offline`: demonstrations and pairs
    samplers    what is drawn, kept, replayed, mixed in and weighted
    stages      one way of learning after another
    objectives  which loss on which powers of a policy: policy gradient, supervised, preference, DiffusionNFT
    credit      from rewards to advantages
    snapshots   copies of the trained parameters: old policies, moving averages
    checkpoints, trackers, display, runs, model_card  what a run writes and shows

To add an objective: a class with the methods of `objectives.base.Objective`, named in `mmrl.assemble`, and its section
in `mmrl.config.algorithm`.

Gotchas: all randomness follows from the seed and the step, so nothing may draw from global generators. One rollout is
one replay is one micro-batch.
"""

from __future__ import annotations

from mmrl.lazy import exports

_HOMES = {
    "Checkpoints": "run.checkpoints",
    "Experience": "experience",
    "ExperienceSource": "experience",
    "MicroBatch": "experience",
    "OnlineRollouts": "rollouts.online",
    "RunError": "mmrl.errors",
    "Trainer": "trainer",
    "load_run": "run.run_folder",
}

__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
