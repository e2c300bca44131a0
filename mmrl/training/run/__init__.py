"""The run folder: checkpoints, trackers, displays, timers, the lock."""
