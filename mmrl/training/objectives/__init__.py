"""Objectives: the losses that an update minimises, with the experience that each one needs."""
