"""A program in which mmrl cannot be imported: it runs the code of model cards, and saves the outputs.

    python without_mmrl.py FOLDER...     each with a README.md; writes FOLDER.safetensors beside it

It is handed to a fresh interpreter by `test_export`, and is never imported.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file


class Refused:
    """Finds mmrl, and will not have it."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mmrl", "mmrl_kernels"):
            raise ImportError(f"{name} is not there")
        return None


sys.meta_path.insert(0, Refused())


def code_of(folder):
    return (Path(folder) / "README.md").read_text().split("```python\n")[1].split("\n```")[0]


def result(folder):
    torch.manual_seed(0)
    names = {}
    exec(code_of(folder), names)
    if "pipe" in names:
        pipe, call = names["pipe"], {"num_inference_steps": 3, "guidance_scale": 2.0, "output_type": "np"}
        generator = torch.Generator().manual_seed(7)
        return {"out": torch.tensor(pipe("a red circle", generator=generator, max_sequence_length=1, **call).images)}
    if "image" in names:
        return {"out": torch.tensor(np.asarray(names["image"]))}
    inputs = load_file("question.safetensors")
    inputs |= {name: value.to(names["model"].dtype) for name, value in inputs.items() if value.is_floating_point()}
    with torch.no_grad():
        return {"out": names["model"](**inputs).logits.float().log_softmax(-1)}


for each in sys.argv[1:]:
    save_file({name: value.contiguous() for name, value in result(each).items()}, f"{each}.safetensors")
assert not [name for name in sys.modules if name.partition(".")[0] in ("mmrl", "mmrl_kernels")]
