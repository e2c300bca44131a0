"""Python code for model cards: generate an image with a token image generator, without mmrl.

transformers loads these models and generates their codes. The code states which tokens are codes, and decodes the codes
to pixels. Each snippet ends with `image`, an image of PIL.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.export.snippets import quoted

_TO_IMAGE = "((pixels.detach().float().clamp(-1, 1) + 1) * 127.5).round().byte().cpu().numpy()"


@dataclass(frozen=True)
class ImageTokenCall:
    """The folder, the prompt and the sampling settings of a snippet."""

    folder: str
    dtype: str
    prompt: str
    sampling: ImageTokenSamplingConfig

    @property
    def load_arguments(self) -> str:
        """The arguments of `from_pretrained`."""
        return f"{quoted(self.folder)}, dtype=torch.{self.dtype}"

    @property
    def generate_arguments(self) -> str:
        """The arguments of `generate`; `top_k=0` switches off transformers' default of 50."""
        sampling = self.sampling
        if not sampling.temperature:
            return "do_sample=False"
        return (
            f"do_sample=True, temperature={sampling.temperature}, top_p={sampling.top_p}, top_k={sampling.top_k or 0}"
        )


def janus_code(call: ImageTokenCall, template: bool) -> str:
    """Return the code for a Janus model; `template` states whether its processor has a chat template."""
    scale = call.sampling.guidance_scale
    prompt = [f"text = {quoted(call.prompt)}"]
    if template:
        prompt = [
            f'turn = [{{"role": "user", "content": [{{"type": "text", "text": {quoted(call.prompt)}}}]}}]',
            "text = processor.apply_chat_template(turn, add_generation_prompt=True)",
        ]
    return "\n".join(
        [
            "import torch",
            "from PIL import Image",
            "from transformers import AutoProcessor, JanusForConditionalGeneration",
            "",
            f"model = JanusForConditionalGeneration.from_pretrained({call.load_arguments})",
            f"processor = AutoProcessor.from_pretrained({quoted(call.folder)})",
            *prompt,
            'inputs = processor(text=[text], generation_mode="image", return_tensors="pt").to(model.device)',
            "codes = model.generate(",
            f'    **inputs, generation_mode="image", use_cache=True, guidance_scale={scale}, {call.generate_arguments}',
            ")",
            "pixels = model.decode_image_tokens(codes)[0]",
            f"image = Image.fromarray({_TO_IMAGE})",
        ]
    )


def emu3_code(call: ImageTokenCall, rows: int, columns: int) -> str:
    """Return the code for an Emu3 model, whose rows of codes each end with a fixed token."""
    return "\n".join(
        [
            "import torch",
            "from PIL import Image",
            "from transformers import AutoProcessor, Emu3ForConditionalGeneration",
            "",
            f"model = Emu3ForConditionalGeneration.from_pretrained({call.load_arguments})",
            f"processor = AutoProcessor.from_pretrained({quoted(call.folder)})",
            "words, codes_of = processor.tokenizer, model.vocabulary_mapping",
            f"rows, columns = {rows}, {columns}",
            'size = f"{words.boi_token}{rows}*{columns}{words.image_wrapper_token}"',
            f'inputs = processor(text=[{quoted(call.prompt)} + size], return_tensors="pt").to(model.device)',
            *_empty(call, 'processor(text=[{} + size], return_tensors="pt").to(model.device)'),
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
            *_guided(call, 'empty["input_ids"]', 'empty["attention_mask"]'),
            f"    {call.generate_arguments},",
            ")",
            "codes = codes_of.convert_bpe2img(written[:, begun:].view(1, rows, columns + 1))",
            "pixels = model.model.vqmodel.decode(codes)[0].permute(1, 2, 0)",
            f"image = Image.fromarray({_TO_IMAGE})",
        ]
    )


def composite_code(call: ImageTokenCall, patches: bool) -> str:
    """Return the code for a causal language model and a codec: a table of `patches`, or a VQModel of diffusers."""
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
            f"folder = {quoted(call.folder)}",
            'layout = json.loads(Path(folder, "image_tokens.json").read_text())',
            '(rows, columns), first = layout["grid"], layout["first_code"]',
            f'model = AutoModelForCausalLM.from_pretrained(f"{{folder}}/language_model", dtype=torch.{call.dtype})',
            'words = AutoTokenizer.from_pretrained(f"{folder}/tokenizer")',
            codec,
            f'ids = torch.tensor([[*words({quoted(call.prompt)})["input_ids"], layout["start"]]])',
            *_empty(call, 'torch.tensor([[*words({})["input_ids"], layout["start"]]])'),
            "written = model.generate(",
            "    ids,",
            "    attention_mask=torch.ones_like(ids),",
            "    max_new_tokens=rows * columns,",
            f"    suppress_tokens=[n for n in range(model.config.vocab_size) if not first <= n < first + {count}],",
            "    eos_token_id=None,",
            "    pad_token_id=0,",
            *_guided(call, "empty", "torch.ones_like(empty)"),
            f"    {call.generate_arguments},",
            ")",
            "codes = (written[0, ids.shape[1] :] - first).view(rows, columns)",
            *drawn,
        ]
    )


def _empty(call: ImageTokenCall, read: str) -> list[str]:
    """Return the line that tokenizes the negative prompt; `read` is the code around its text."""
    if call.sampling.guidance_scale == 1:
        return []
    return ["empty = " + read.format(quoted(call.sampling.negative_prompt or ""))]


def _guided(call: ImageTokenCall, empty: str, mask: str) -> list[str]:
    scale = call.sampling.guidance_scale
    if scale == 1:
        return []
    return [
        f"    guidance_scale={scale},",
        f"    negative_prompt_ids={empty},",
        f"    negative_prompt_attention_mask={mask},",
    ]
