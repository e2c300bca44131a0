"""Diffusers pipelines as policies: hooks, loops, transitions, replay."""
