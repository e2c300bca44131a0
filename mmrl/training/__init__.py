"""The training loop and its parts. docs/one-iteration.md follows one iteration through them.

    training_loop  collect experience, accumulate gradients, update, evaluate, save
    experience     the interface between rollouts and objectives: `MicroBatch`, `Experience`
    rollouts       sources of experience: online rollouts, demonstrations, preference pairs
    objectives     losses, each on certain capabilities of a policy: policy gradient, imitation, preferences, velocities
    run            what a run writes and displays: checkpoints, trackers, displays, the run folder
    run_models     the models of a run by name (`named_model`), snapshots of them, and handles (`model_handles`)
    ema            copies of parameters: old policies and moving averages
    loss_scale     loss scaling for float16
    monitors       warnings and early stopping

All randomness follows from the seed and the step, so no code here may draw from global generators. One rollout is one
replay is one micro-batch.
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
    "TrainingLoop": "training_loop",
    "load_run": "run.run_folder",
}

__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES, renamed={"Trainer": "training_loop:TrainingLoop"})
