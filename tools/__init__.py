"""Scripts for maintainers: the vocabulary gate, the counts of the house, and the training of ShapeWorld's models."""
