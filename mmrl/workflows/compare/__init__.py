"""Comparison of checkpoints: entries, inputs, answers, results; `compare` for policies in memory."""
