"""Calculations in text on which a model that thinks before it answers beats one that answers directly."""
