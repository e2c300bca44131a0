"""Rewards of videos."""
