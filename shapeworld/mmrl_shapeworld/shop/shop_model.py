"""The language model of the toy shop: that of traces, with a token for each of the shop's words."""

from __future__ import annotations

from transformers import Qwen3VLProcessor

from mmrl_shapeworld.reasoning import reasoner_model
from mmrl_shapeworld.shop.careless_shopper import TAGS
from mmrl_shapeworld.shop.shop_environment import AGAIN, ELSEWHERE, GOT, HERE, REFUSED
from mmrl_shapeworld.shop.shop_splits import SEEN, UNSEEN

PIECES = (
    *(f"<{tag}>" for tag in TAGS),
    *("open", "take", "put", "pay", REFUSED, AGAIN, GOT, HERE, ELSEWHERE, ":"),
    *SEEN,
    *UNSEEN,
)


def processor() -> Qwen3VLProcessor:
    """Return the processor, whose tokenizer gives any text back exactly."""
    return reasoner_model.processor(PIECES)
