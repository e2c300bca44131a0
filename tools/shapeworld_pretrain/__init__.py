"""Pre-train the shipped weights: `python -m tools.shapeworld_pretrain autoencoder|generator|observer|clip|vlm`, and
`python -m tools.shapeworld_pretrain.unet`, `.picture_tasks`, `.video` for the pipelines of other classes."""
