"""Training with several processes, which `torchrun` or `accelerate launch` starts; every other package runs with one."""
