"""How a token image generator draws a picture without mmrl: Python that a reader of a model card can paste.

transformers loads these models and writes their codes; which tokens are codes, and what makes pixels of them, is told
here in the reader's own code. Each ends with `image`, a picture of PIL.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.export.snippets import quoted

_TO_IMAGE = "((pixels.detach().float().clamp(-1, 1) + 1) * 127.5).round().byte().cpu().numpy()"


@dataclass(frozen=True)
class Drawing:
    """What is drawn, from which folder, and how."""

    folder: str
    dtype: str
    prompt: str
    sampling: ImageTokenSamplingConfig

    @property
    def place(self) -> str:
        """Arguments of `from_pretrained`."""
        return f"{quoted(self.folder)}, dtype=torch.{self.dtype}"

    @property
    def how(self) -> str:
        """Arguments of `generate`; `top_k=0` because transformers cuts to 50 by itself."""
        sampling = self.sampling
        if not sampling.temperature:
            return "do_sample=False"
        return (
            f"do_sample=True, temperature={sampling.temperature}, top_p={sampling.top_p}, top_k={sampling.top_k or 0}"
        )


def janus_code(drawing: Drawing, template: bool) -> str:
    """`template`: whether its processor has a chat template."""
    scale = drawing.sampling.guidance_scale
    asked = [f"text = {quoted(drawing.prompt)}"]
    if template:
        asked = [
            f'turn = [{{"role": "user", "content": [{{"type": "text", "text": {quoted(drawing.prompt)}}}]}}]',
            "text = processor.apply_chat_template(turn, add_generation_prompt=True)",
        ]
    return "\n".join(
        [
            "import torch",
            "from PIL import Image",
            "from transformers import AutoProcessor, JanusForConditionalGeneration",
            "",
            f"model = JanusForConditionalGeneration.from_pretrained({drawing.place})",
            f"processor = AutoProcessor.from_pretrained({quoted(drawing.folder)})",
            *asked,
            'inputs = processor(text=[text], generation_mode="image", return_tensors="pt").to(model.device)',
            "codes = model.generate(",
            f'    **inputs, generation_mode="image", use_cache=True, guidance_scale={scale}, {drawing.how}',
            ")",
            "pixels = model.decode_image_tokens(codes)[0]",
            f"image = Image.fromarray({_TO_IMAGE})",
        ]
    )


def emu3_code(drawing: Drawing, rows: int, columns: int) -> str:
    """Rows of codes, each ended by a token that is not chosen."""
    return "\n".join(
        [
            "import torch",
            "from PIL import Image",
            "from transformers import AutoProcessor, Emu3ForConditionalGeneration",
            "",
            f"model = Emu3ForConditionalGeneration.from_pretrained({drawing.place})",
            f"processor = AutoProcessor.from_pretrained({quoted(drawing.folder)})",
            "words, codes_of = processor.tokenizer, model.vocabulary_mapping",
            f"rows, columns = {rows}, {columns}",
            'size = f"{words.boi_token}{rows}*{columns}{words.image_wrapper_token}"',
            f'inputs = processor(text=[{quoted(drawing.prompt)} + size], return_tensors="pt").to(model.device)',
            *_empty(drawing, 'processor(text=[{} + size], return_tensors="pt").to(model.device)'),
            'begun = inputs["input_ids"].shape[1]',
            "",
            "",
            "def allowed(_, ids):",
            "    row_ends = (len(ids) - begun + 1) % (columns + 1) == 0",
            "    return [codes_of.eol_token_id] if row_ends else codes_of.image_tokens",
            "",
            "",
            "written = model.generate(",
            "    **inputs,",
            "    max_new_tokens=rows * (columns + 1),",
            "    prefix_allowed_tokens_fn=allowed,",
            *_guided(drawing, 'empty["input_ids"]', 'empty["attention_mask"]'),
            f"    {drawing.how},",
            ")",
            "codes = codes_of.convert_bpe2img(written[:, begun:].view(1, rows, columns + 1))",
            "pixels = model.model.vqmodel.decode(codes)[0].permute(1, 2, 0)",
            f"image = Image.fromarray({_TO_IMAGE})",
        ]
    )


def composite_code(drawing: Drawing, patches: bool) -> str:
    """A causal language model, and a codec: pictures made of `patches`, or a VQModel of diffusers."""
    library = "from safetensors.torch import load_file" if patches else "from diffusers import VQModel"
    codec = (
        'patches = load_file(f"{folder}/patches.safetensors")["patches"]'
        if patches
        else 'codec = VQModel.from_pretrained(f"{folder}/vqvae")'
    )
    count = "len(patches)" if patches else "codec.config.num_vq_embeddings"
    squares = "patches[codes].permute(0, 3, 1, 4, 2)  # rows, height, columns, width, 3"
    drawn = [f"squares = {squares}", "image = Image.fromarray(squares.flatten(2, 3).flatten(0, 1).numpy())"]
    if not patches:
        drawn = [
            "shape = (1, rows, columns, codec.quantize.vq_embed_dim)",
            "latents = codec.quantize.get_codebook_entry(codes.flatten(), shape)",
            "pixels = codec.decode(latents, force_not_quantize=True).sample[0].permute(1, 2, 0)",
            f"image = Image.fromarray({_TO_IMAGE})",
        ]
    return "\n".join(
        [
            "import json",
            "from pathlib import Path",
            "",
            "import torch",
            *sorted([library, "from PIL import Image", "from transformers import AutoModelForCausalLM, AutoTokenizer"]),
            "",
            f"folder = {quoted(drawing.folder)}",
            'told = json.loads(Path(folder, "image_tokens.json").read_text())',
            '(rows, columns), first = told["grid"], told["first_code"]',
            f'model = AutoModelForCausalLM.from_pretrained(f"{{folder}}/language_model", dtype=torch.{drawing.dtype})',
            'words = AutoTokenizer.from_pretrained(f"{folder}/tokenizer")',
            codec,
            f'ids = torch.tensor([[*words({quoted(drawing.prompt)})["input_ids"], told["start"]]])',
            *_empty(drawing, 'torch.tensor([[*words({})["input_ids"], told["start"]]])'),
            "written = model.generate(",
            "    ids,",
            "    attention_mask=torch.ones_like(ids),",
            "    max_new_tokens=rows * columns,",
            f"    suppress_tokens=[n for n in range(model.config.vocab_size) if not first <= n < first + {count}],",
            "    eos_token_id=None,",
            "    pad_token_id=0,",
            *_guided(drawing, "empty", "torch.ones_like(empty)"),
            f"    {drawing.how},",
            ")",
            "codes = (written[0, ids.shape[1] :] - first).view(rows, columns)",
            *drawn,
        ]
    )


def _empty(drawing: Drawing, read: str) -> list[str]:
    """What guidance leads away from; `read` is the code around its text."""
    if drawing.sampling.guidance_scale == 1:
        return []
    return ["empty = " + read.format(quoted(drawing.sampling.negative_prompt or ""))]


def _guided(drawing: Drawing, empty: str, mask: str) -> list[str]:
    scale = drawing.sampling.guidance_scale
    if scale == 1:
        return []
    return [
        f"    guidance_scale={scale},",
        f"    negative_prompt_ids={empty},",
        f"    negative_prompt_attention_mask={mask},",
    ]
