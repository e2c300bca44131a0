"""Reading answers: boxes, points, moments, counts, actions, tables."""
