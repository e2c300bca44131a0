"""The memory of a training run, estimated from a model's configuration files without its weights.

architecture   a pipeline's classes and sizes, from JSON files; its components on torch's meta device
meta_run       a pipeline that runs with such components; the allocations that they would make
estimate       `estimate_memory`: a rollout and an update of a policy on the meta device
memory_report  `MemoryEstimate`: the sums by purpose, as text
"""
