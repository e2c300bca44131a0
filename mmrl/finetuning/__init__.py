"""Trained parameters of a model: LoRA adapters or full parameters, the frozen reference, and checkpoints.

    trainable             the interface `Trainable`, the frozen copy and the checks that all of them share
    diffusers_modules     denoisers of diffusers: `DiffusersLora`, `DiffusersFull`
    transformers_modules  models of transformers: `TransformersLora`, `TransformersFull`

Layers: `mmrl.generation` and `mmrl.understanding` choose which layers are trained; this package knows no policy.
"""
