"""Rewards that need no model: rules over what was answered and what is right."""
