"""Training with several processes, which `torchrun` or `accelerate launch` starts."""
