"""Rewards that compare an answer with a reference by a rule, without a model."""
