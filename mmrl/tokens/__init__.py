"""What every policy that writes tokens shares, be they words or pieces of a picture.

    log_probs   log-probabilities and entropies of sampled tokens, at the temperature they were sampled at
    sampling    drawing a token from logits
    guidance    logits after a prompt and after none, mixed
    sequences   which tokens of a padded batch belong to a text
    caches      keys and values of prompts, for as many rows as go on from each
    trainables  adapters or whole parameters, and the reference (imports peft)

Where it fits: `mmrl.understanding` and the token policies of `mmrl.generation` build on it; it knows no model.
"""

from mmrl.tokens.log_probs import scored_logits, token_log_probs
from mmrl.tokens.padding import length_buckets, pad_right, until_end
from mmrl.tokens.sampling import draw_tokens, guided_logits

__all__ = [
    "draw_tokens",
    "guided_logits",
    "length_buckets",
    "pad_right",
    "scored_logits",
    "token_log_probs",
    "until_end",
]
