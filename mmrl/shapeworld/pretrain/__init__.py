"""How the shipped weights were made: `python -m mmrl.shapeworld.pretrain autoencoder|generator|observer`."""
