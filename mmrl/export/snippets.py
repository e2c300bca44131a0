"""Python code for model cards: load a trained model without mmrl.

Names and prompts are data of the user, so they enter the code through `quote` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.data.media.sample_media import MediaKind
from mmrl.generation.image_tokens.image_token_model import quote

PICTURE = "picture.png"
"""The file that the code passes to a model that takes pictures."""
_READERS: dict[MediaKind, str] = {
    "image": f'load_image("{PICTURE}")',
    "mask": 'load_image("mask.png")',
    "video": 'load_video("video.mp4")',
}


def pipeline_code(
    folder: str,
    dtype: str,
    prompt: str | None,
    arguments: Mapping[str, Any],
    conditions: Mapping[str, MediaKind],
    video: bool,
    scale_on_guider: float | None,
) -> str:
    """Return the code for a whole pipeline of diffusers, with the run's arguments and placeholder files."""
    readers = sorted({_READERS[kind].partition("(")[0] for kind in conditions.values()})
    return "\n".join(
        [
            "import torch",
            "from diffusers import DiffusionPipeline",
            *([f"from diffusers.utils import {', '.join(readers)}"] if readers else []),
            "",
            f"pipe = DiffusionPipeline.from_pretrained({quote(folder)}, dtype=torch.{dtype})",
            *([] if scale_on_guider is None else [f"pipe.guider.guidance_scale = {scale_on_guider!r}"]),
            _call(prompt, arguments, conditions, video),
        ]
    )


def pipeline_lora_code(
    model: str,
    folder: str,
    revision: str | None = None,
    dtype: str | None = None,
    main: bool = True,
    others: Sequence[str] = (),
    alone: Sequence[str] = (),
) -> str:
    """Return the code for a pipeline of diffusers, `model`, and the adapters of its denoisers in `folder`.

    Args:
        main: Whether the folder itself contains adapters.
        others: Subfolders, named after components, whose adapters the pipeline loads.
        alone: Subfolders, named after components, whose adapters the component itself loads.
    """
    lines = [
        *(["import torch"] if dtype else []),
        "from diffusers import DiffusionPipeline",
        "",
        f"pipe = DiffusionPipeline.from_pretrained({quote(model)}{_at(revision, dtype)})",
    ]
    if main:
        lines.append(f"pipe.load_lora_weights({quote(folder)})")
    lines += [f"pipe.load_lora_weights({quote(f'{folder}/{name}')}, load_into_{name}=True)" for name in others]
    lines += [f"pipe.{name}.load_lora_adapter({quote(f'{folder}/{name}')}, prefix=None)" for name in alone]
    return "\n".join(lines)


def vlm_code(folder: str, dtype: str, prompt: str, picture: bool, longest: int) -> str:
    """Return the code for a vision-language model of transformers and a greedy answer."""
    return "\n".join(
        [
            "import torch",
            *(["from PIL import Image"] if picture else []),
            "from transformers import AutoModelForImageTextToText, AutoProcessor",
            "",
            f"model = AutoModelForImageTextToText.from_pretrained({quote(folder)}, dtype=torch.{dtype})",
            f"processor = AutoProcessor.from_pretrained({quote(folder)})",
            *_question(prompt, picture, longest),
        ]
    )


def vlm_lora_code(model: str, folder: str, revision: str | None = None, dtype: str | None = None) -> str:
    """Return the code for a vision-language model of transformers and its adapter."""
    return "\n".join(
        [
            *(["import torch"] if dtype else []),
            "from peft import PeftModel",
            "from transformers import AutoModelForImageTextToText, AutoProcessor",
            "",
            f"model = AutoModelForImageTextToText.from_pretrained({quote(model)}{_at(revision, dtype)})",
            f"model = PeftModel.from_pretrained(model, {quote(folder)})",
            f"processor = AutoProcessor.from_pretrained({quote(model)}{_at(revision)})",
        ]
    )


def token_lora_code(kind: str, model: str, folder: str, revision: str | None = None) -> str:
    """Return the code for the model of class `kind`, which generates image codes, and its adapter."""
    place = "" if kind.endswith("ForConditionalGeneration") else ', subfolder="language_model"'
    return "\n".join(
        [
            "from peft import PeftModel",
            f"from transformers import {kind}",
            "",
            f"model = {kind}.from_pretrained({quote(model)}{_at(revision)}{place})",
            f"model = PeftModel.from_pretrained(model, {quote(folder)})",
        ]
    )


def from_package(code: str, model: str) -> str:
    """Return code that names the folder `PACKAGE/FOLDER` with the folder found in the installed package."""
    package, _, folder = model.partition("/")
    found = f"files({quote(package)}) / {quote(folder)}"
    return f"from importlib.resources import files\n\n{code}".replace(quote(model), found)


def _call(prompt: str | None, arguments: Mapping[str, Any], conditions: Mapping[str, MediaKind], video: bool) -> str:
    arguments_code = [] if prompt is None else [f"prompt={quote(prompt)}"]
    arguments_code += [f"{name}={_READERS[kind]}" for name, kind in conditions.items()]
    arguments_code += [f"{name}={value!r}" for name, value in arguments.items()]
    lines = "".join(f"    {each},\n" for each in arguments_code)
    return f"{'frames' if video else 'image'} = pipe(\n{lines}).{'frames' if video else 'images'}[0]"


def _question(prompt: str, picture: bool, longest: int) -> list[str]:
    parts = [f'{{"type": "image", "image": Image.open({quote(PICTURE)})}}'] if picture else []
    parts.append(f'{{"type": "text", "text": {quote(prompt)}}}')
    return [
        "content = [",
        *(f"    {part}," for part in parts),
        "]",
        'messages = [{"role": "user", "content": content}]',
        "inputs = processor.apply_chat_template(",
        '    messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"',
        ").to(model.device, model.dtype)",
        f"written = model.generate(**inputs, max_new_tokens={longest}, do_sample=False)",
        'answer = processor.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)',
    ]


def _at(revision: str | None, dtype: str | None = None) -> str:
    return (f", revision={quote(revision)}" if revision else "") + (f", dtype=torch.{dtype}" if dtype else "")
