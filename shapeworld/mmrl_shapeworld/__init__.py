"""The embedded world: captioned scenes of coloured shapes, their tasks and checkers, and small real models.

Everything that training needs and no download can interrupt: scenes whose truth is known
(`scenes`, `captions`), data sets (`splits`), a rule checker and an independent observer
(`checker`, `observer`), small models of real architectures (`shipped_models`), and benchmark files
(`benchmarks`). mmrl finds them through this package's entry points in pyproject.toml.
"""
