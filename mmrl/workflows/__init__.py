"""The work behind each command: train, validate, sample, compare; `Trainer` for Python."""
