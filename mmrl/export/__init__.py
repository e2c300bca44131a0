"""Exported models: plain folders of diffusers and transformers with a model card, and pushes to the hub."""
