"""Policies that look: vision-language models. Empty so far."""
