"""The `algorithm` sections: what one update minimises. A name selects defaults; every key may be set besides.

policy_gradient    one objective, of which `grpo`, `dapo`, `gspo` and so on are settings
forward_process    regression of velocities: DiffusionNFT, AWM, Flow-RWR
reward_gradient    ascent on differentiable rewards, of which `draft`, `refl` and so on are settings
supervised         imitation of demonstrations, or of the policy's own best answers
preference         preference of a chosen over a rejected answer: DPO, online DPO, MPO

Each section names its objective and states its constraints; `base.OBJECTIVES` lists them by name, and
docs/algorithms.md with their papers.
"""
