"""The frame of the reward zoo: base classes, suites, execution, routing, cache, registry."""
