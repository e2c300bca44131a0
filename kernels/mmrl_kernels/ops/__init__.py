"""One folder an op: spec, reference, and faster forms where they win."""
