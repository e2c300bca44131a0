"""A small model behind a stub server: prefix cache, adapters, whole weights, and injected faults."""

from __future__ import annotations

import base64
import inspect
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from PIL import Image

from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.finetuning.transformers_modules import names_kept
from mmrl.understanding.encoded_prompt import EncodedPrompt, collate
from mmrl.understanding.prompt_encoder import sent_metadata
from mmrl.understanding.serving.served_engine import PROBE_ANSWERS
from mmrl.understanding.shared_prompt import Prefix, prefill
from mmrl.understanding.vlm import load_vlm
from mmrl_shapeworld.serving.stub_writer import Scheduler, write_answers

RATE = 2.0
"""The frames a second of the videos that a server is sent: `media.video.fps`."""


class RequestError(Exception):
    """A request that vLLM answers with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class StubModel:
    """The model of a stub server, in the place of a vLLM engine."""

    def __init__(self, name: str, folder: str) -> None:
        self.name = name
        self.vlm = load_vlm(VLMConfig(model=folder, device="cpu"))
        self.accepted = set(inspect.signature(self.vlm.model.forward).parameters)
        self.peft: PeftModel | None = None
        self.adapters: dict[str, str] = {}
        self.version = "default"
        self.scheduler = Scheduler()
        self.refuses = False
        self.faults: dict[str, int] = {}  # how often each is still injected; -1: always
        self.cache: dict[tuple[Any, ...], Prefix] = {}

    def fault(self, name: str) -> bool:
        """Return whether a fault is injected now, and count it."""
        left = self.faults.get(name, 0)
        if left > 0:
            self.faults[name] = left - 1
        return left != 0

    def reset(self) -> None:
        """Forget faults, adapters and caches, and generate again."""
        self.faults, self.refuses = {}, False
        self.scheduler.going.set()
        for name in list(self.adapters):
            self.unload_lora(name)
        self.cache.clear()

    # Weights

    def load_lora(self, name: str, path: str) -> None:
        if self.fault("lora_refused"):
            raise RequestError(500, "No free LoRA slot")
        if name in self.adapters:
            raise RequestError(400, f"The lora adapter '{name}' has already been loaded.")
        if not (Path(path) / "adapter_config.json").is_file():
            raise RequestError(404, f"No adapter found for {path}")
        with names_kept(self.vlm.model):  # a server reads an adapter by its names, without peft's renaming of layers
            if self.peft is None:
                self.peft = PeftModel.from_pretrained(self.vlm.model, path, adapter_name=name)
            else:
                self.peft.load_adapter(path, adapter_name=name)
        if self.fault("lora_binds_nothing"):
            self._fill_adapter(name, share=1.0)
        if self.fault("lora_binds_half"):
            self._fill_adapter(name, share=0.5)
        self.adapters[name] = path
        self.vlm.model.eval()

    def _fill_adapter(self, name: str, share: float) -> None:
        weights = [p for n, p in self.vlm.model.named_parameters() if f"lora_B.{name}." in n]
        for weight in weights[: round(share * len(weights))]:
            weight.data.zero_()

    def unload_lora(self, name: str) -> None:
        if name not in self.adapters:
            raise RequestError(404, f"The lora adapter '{name}' cannot be found.")
        del self.adapters[name]
        assert self.peft is not None
        self.peft.delete_adapter(name)

    @torch.no_grad()
    def reload(self, path: str) -> None:
        if self.fault("reload_fails"):
            raise RequestError(500, "Internal Server Error")
        if not list(Path(path).glob("*.safetensors")):
            raise RequestError(500, f"Cannot find any model weights with `{path}`")
        if self.fault("old_weights"):
            return
        fresh = dict(type(self.vlm.model).from_pretrained(path, dtype=torch.float32).named_parameters())
        names = sorted(fresh)
        if self.fault("half_update"):
            names = names[::2]
        for name, parameter in self.vlm.model.named_parameters():
            if name in names:
                parameter.copy_(fresh[name])

    def reset_cache(self, running: bool) -> bool:
        if self.fault("cache_is_held") or (self.scheduler.running and not running):
            return False  # requests that run hold blocks
        if not self.fault("stale_cache"):
            self.cache.clear()
        if running and not self.fault("kept_keys"):
            self.scheduler.discarded += 1
        return True

    # Answers

    async def generate(self, body: dict[str, Any], waits: Callable[[], None]) -> dict[str, Any]:
        """Return the reply to a request; `waits` is called where the fault `waits_for_pause` keeps it."""
        await self.scheduler.going.wait()
        model = body.get("model") or self.name
        if model != self.name and (model not in self.adapters or self.fault("adapter_forgotten")):
            raise RequestError(404, f"The model `{model}` does not exist.")
        adapter = None if model == self.name else model
        self._use_adapter(adapter)
        encoded = self._expand(body["token_ids"], body.get("content_parts") or [])
        prompt = encoded.inputs["input_ids"][0].tolist()
        wanted = body["sampling_params"]
        ends = [*self.vlm.ends.tolist(), *wanted["stop_token_ids"]]
        suppressed = [] if self.fault("bias_ignored") else [int(token) for token in wanted["logit_bias"]]
        vlm = replace(
            self.vlm,
            ends=torch.tensor(sorted(set(ends))),
            suppressed=torch.tensor(suppressed, dtype=torch.long),
        )
        sampling = TokenSamplingConfig(temperature=wanted["temperature"], max_new_tokens=wanted["max_tokens"])
        inputs = collate([encoded], self.vlm.padding)
        key = (model, tuple(prompt), *(_bytes(value) for name, value in inputs.items() if "pixel" in name))
        if self.fault("tokens_of_pictures"):
            vlm = replace(vlm, suppressed=torch.arange(0, 256))
        with torch.no_grad():
            if key not in self.cache:
                self.cache[key] = prefill(vlm.model, vlm.family, vlm.to_device(inputs))
            prefix = self.cache[key]

        def before_step() -> str:
            self._use_adapter(adapter)  # other requests have had their turn
            return self.version

        wait = waits if wanted["n"] > PROBE_ANSWERS and self.fault("waits_for_pause") else None
        written = await write_answers(
            vlm, encoded, prefix, wanted["n"], sampling, wanted["seed"], self.scheduler, before_step, wait
        )
        log_probs = written.log_probs
        with torch.no_grad():
            if self.fault("raw_log_probs"):
                log_probs = [
                    self._raw(prefix.expand(torch.zeros(1, dtype=torch.long)), ids) for ids in written.token_ids
                ]
        if self.fault("other_kernels"):
            log_probs = [[value - 0.06 * (place % 2) for place, value in enumerate(row)] for row in log_probs]
        choices = [
            self._choice(number, ids, row, written.spans(number))
            for number, (ids, row) in enumerate(zip(written.token_ids, log_probs, strict=True))
        ]
        reported = prompt[:-1] if self.fault("prompt_cut") else prompt
        reply = {"model": model, "choices": choices, "prompt_token_ids": reported, "output_mode": "tokens"}
        return self._spoiled(reply)

    def complete_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a chat completion, written by transformers' own `generate`."""
        if body["model"] != self.name:
            raise RequestError(404, f"The model `{body['model']}` does not exist.")
        self._use_adapter(None)
        turns, pictures = [], []
        for message in body["messages"]:
            content = message["content"]
            parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
            pictures += [_picture(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]
            kinds = [{"type": "image"} if part["type"] == "image_url" else part for part in parts]
            turns.append({"role": message["role"], "content": kinds})
        text = self.vlm.processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        encoded = self.vlm.processor(text=[text], images=pictures or None, return_tensors="pt")
        encoded = {name: value for name, value in encoded.items() if name in self.accepted}
        torch.manual_seed(body["seed"])
        warm = {"do_sample": True, "temperature": body["temperature"], "top_p": body["top_p"], "top_k": 0}
        with torch.no_grad():
            written = self.vlm.model.generate(
                **encoded,
                max_new_tokens=body["max_tokens"],
                suppress_tokens=self.vlm.suppressed.tolist() or None,
                **(warm if body["temperature"] else {"do_sample": False}),
            )
        ids = written[0, encoded["input_ids"].shape[1] :].tolist()
        message = {"role": "assistant", "content": self.vlm.decode(ids)}
        if self.fault("chat_refusal"):
            message = {"role": "assistant", "content": None, "refusal": "no"}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    def _use_adapter(self, name: str | None) -> None:
        if self.peft is None:
            return
        for module in self.vlm.model.modules():
            if hasattr(module, "_disable_adapters"):
                module._disable_adapters = name is None
        if name is not None:
            self.peft.set_adapter(name)

    def _expand(self, token_ids: Sequence[int], parts: Sequence[dict[str, Any]]) -> EncodedPrompt:
        """Return the expanded prompt, as the processor of the server makes it."""
        tokenizer = self.vlm.tokenizer
        # vLLM expands placeholders among token ids. Here a text stands between them, in which every byte is a token;
        # white space stays, for Idefics 2 looks whether a word follows a picture.
        (byte,) = tokenizer("~")["input_ids"]
        special = {*tokenizer.get_added_vocab().values(), *(i for c in " \n" for i in tokenizer(c)["input_ids"][-1:])}
        ordinary = [each for each in token_ids if each not in special]
        text = tokenizer.decode([each if each in special else byte for each in token_ids], skip_special_tokens=False)
        if self.fault("wrong_template"):
            text = "You are helpful. " + text
        pictures = [_picture(part["url"]) for part in parts if part["type"] == "image_url"]
        clips = [_frames(part["url"]) for part in parts if part["type"] == "video_url"]
        if self.fault("wrong_picture_size"):
            pictures = [picture.resize((picture.width * 2, picture.height * 2)) for picture in pictures]
        if self.fault("wrong_pixels"):
            pictures = [picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for picture in pictures]
        arguments: dict[str, Any] = {"images": [pictures]} if pictures else {}
        if "mm_token_type_ids" in self.accepted:  # Cosmos 3 counts positions by them, and makes them on request alone
            arguments["return_mm_token_type_ids"] = True
        if clips:
            rate = 2 * RATE if self.fault("wrong_rate") else RATE
            arguments["videos"] = [clips]
            arguments["videos_kwargs"] = {
                "do_sample_frames": False,
                "return_metadata": True,
                "video_metadata": [[sent_metadata(len(frames), rate) for frames in clips]],
            }
        encoded = self.vlm.processor(text=[text], return_tensors="pt", **arguments)
        accepted = self.accepted - {"labels", "video_metadata"}
        inputs = {name: torch.as_tensor(value) for name, value in encoded.items() if name in accepted}
        places = inputs["input_ids"][0] == byte
        if int(places.sum()) < len(ordinary):
            raise RequestError(400, "the processor lost tokens of the prompt")
        added = int(places.sum()) - len(ordinary)  # of `wrong_template`, at the beginning
        inputs["input_ids"][0, places.nonzero()[added:, 0]] = torch.tensor(ordinary)
        return EncodedPrompt(inputs, len(pictures), len(clips), self.vlm.family)

    def _raw(self, prefix: Prefix, ids: list[int]) -> list[float]:
        alone = prefix.expand(torch.zeros(1, dtype=torch.long))
        logits = alone.answer_logits(torch.tensor([ids]))[0].float()
        return logits.log_softmax(-1)[torch.arange(len(ids)), ids].tolist()

    def _choice(
        self, number: int, ids: list[int], log_probs: list[float], spans: list[dict[str, Any]]
    ) -> dict[str, Any]:
        stopped = ids[-1] in self.vlm.ends.tolist()
        if self.fault("old_version"):
            spans = [{"version": "mmrl-0-of-another-run", "start": 0, "end": len(ids)}]
        return {
            "index": number,
            "token_ids": ids,
            "finish_reason": "stop" if stopped else "length",
            "logprobs": {
                "content": [
                    {"token_id": token, "logprob": value, "rank": None, "top_logprobs": []}
                    for token, value in zip(ids, log_probs, strict=True)
                ]
            },
            "weight_versions": spans,
        }

    def _spoiled(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Return the reply with the faults of a reply."""
        first = reply["choices"][0]
        content = first["logprobs"]["content"]
        if self.fault("wrong_token_ids"):
            content[0]["token_id"] += 1
        if self.fault("no_log_probs"):
            first["logprobs"] = None
        if self.fault("positive_log_prob"):
            content[0]["logprob"] = 0.5
        if self.fault("sentinel_log_prob"):
            content[-1]["logprob"] = -9999.0
        if self.fault("too_few_answers"):
            reply["choices"].pop()
        if self.fault("answer_twice"):
            reply["choices"][-1] = dict(reply["choices"][0])
        if self.fault("aborted"):
            first["finish_reason"] = "abort"
        if self.fault("cut_off"):
            first["token_ids"], first["logprobs"]["content"] = first["token_ids"][:1], content[:1]
            first["finish_reason"] = "length"
        if self.fault("past_the_end"):
            end = int(self.vlm.ends[0])
            first["token_ids"].insert(0, end)
            content.insert(0, {"token_id": end, "logprob": -1.0})
        if self.fault("no_version"):
            for choice in reply["choices"]:
                choice["weight_versions"] = None
        if self.fault("two_versions"):
            first["weight_versions"].append({"version": "mmrl-later", "start": 1, "end": 2})
        if self.fault("other_model"):
            reply["model"] = self.name
        return reply


def _bytes(value: torch.Tensor) -> bytes:
    return value.contiguous().view(torch.uint8).numpy().tobytes()


def _frames(url: str) -> np.ndarray:
    """Return the frames [T, H, W, 3] of a video in the form that vLLM takes frames in."""
    found = re.fullmatch(r"data:video/jpeg;base64,(.*)", url, re.S)
    if found is None:
        raise RequestError(400, "the stub takes frames in data URIs alone")
    return np.stack([np.asarray(_picture(f"data:image/png;base64,{frame}")) for frame in found[1].split(",")])


def _picture(url: str) -> Image.Image:
    found = re.fullmatch(r"data:image/png;base64,(.*)", url, re.S)
    if found is None:
        raise RequestError(400, "the stub takes PNG in data URIs alone")
    return Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGB")
