"""The app that compares checkpoints. Empty so far."""
