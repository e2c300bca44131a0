"""What every token policy will share: log-probabilities of sampled tokens, sampling, packing. Empty so far."""
