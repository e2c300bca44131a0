"""Operations on tokens that every token policy shares, for text and for image tokens.

    log_probs     log-probabilities and entropies of sampled tokens, from logits or from last hidden states
    sampling      sampling of a token from logits; classifier-free guidance of logits
    padding       padded batches, end tokens, buckets of similar length
    kv_cache      keys and values of prompts, shared by all rows that continue a prompt
    token_policy  `TokenPolicy`, the base class of policies of language models; the choice of their attention

Layers: `mmrl.understanding` and the token policies of `mmrl.generation` build on it; it knows no model.
"""

from mmrl.tokens.log_probs import scored_logits, token_log_probs
from mmrl.tokens.padding import length_buckets, pad_right
from mmrl.tokens.sampling import guided_logits, sample_tokens

__all__ = [
    "guided_logits",
    "length_buckets",
    "pad_right",
    "sample_tokens",
    "scored_logits",
    "token_log_probs",
]
