"""Ops, one folder each: spec, reference, and faster forms where they win."""
