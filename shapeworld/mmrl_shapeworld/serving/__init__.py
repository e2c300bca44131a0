"""Served rollouts on one machine: a stub with vLLM's routes over small models, and runs whose servers come and go."""
