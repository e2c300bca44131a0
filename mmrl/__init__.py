"""mmrl: reinforcement learning that teaches generators to draw and vision-language models to look.

Importing this package is cheap: torch and the models load with the subpackage that needs them.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
