"""Rewards behind HTTP: `mmrl rewards serve` holds them, `RemoteReward` scores with them."""
