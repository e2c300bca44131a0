"""What a training run will need, from a model's configuration files alone.

architecture     a pipeline's classes and sizes, from JSON files; built on torch's meta device
on_paper         such a pipeline as one that runs, with networks that compute shapes only
live_bytes       how many bytes live at once while it does
repeated_blocks  a model of many equal layers from the same model with two and three of them
memory           the sums, and how they are told
dry_run          all of it for one configuration
"""
