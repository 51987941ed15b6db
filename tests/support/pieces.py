"""Small tokenizers with known tokens: given pieces of text, and single characters for the rest."""

import re
import string


def tokenizer_of(*pieces, special=(), template=None, eos=None):
    """A tokenizer of these pieces, the longest first, and of characters; `special` tokens are
    marked as such.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = dict.fromkeys([*sorted(pieces, key=len, reverse=True), *string.printable])
    backend = Tokenizer(
        models.WordLevel({piece: number for number, piece in enumerate(known)}, unk_token="\x0b")
    )
    backend.pre_tokenizer = pre_tokenizers.Split(
        Regex("|".join([*map(re.escape, known), "."])), "isolated"
    )
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, eos_token=eos)
