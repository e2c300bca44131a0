"""Parsers of answers: boxes, masks, points, time spans, numbers, actions and tables."""
