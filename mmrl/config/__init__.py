"""The typed configuration: YAML in, frozen sections out.

    ConfigError(ValueError)    a configuration that cannot be used; one line a problem

Each section is one file (`policy`, `sampling`, ...), and the text under a field is that field's help. To add
a key, add a field with a default and its reason: loading, overrides, suggestions for misspelt keys and the resolved
`config.yaml` of a run follow from the type.

Gotchas:

- A section given in part keeps the other defaults *of its field*, which may differ from those of its class:
  `algorithm.kl.kind` is `velocity_mse` under DiffusionNFT.
- Numbers and booleans follow YAML 1.2: `1e-4` is a number, and `no` and `on` are words.
"""

from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.loading.load import dump_config, load_config
from mmrl.config.recipes import Recipe, copy_recipe, find_recipe, list_recipes
from mmrl.config.section import Section
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError

__all__ = [
    "BatchPlan",
    "ConfigError",
    "Recipe",
    "Section",
    "TrainConfig",
    "copy_recipe",
    "dump_config",
    "find_recipe",
    "list_recipes",
    "load_config",
]
