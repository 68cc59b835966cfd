"""A tokenizer small enough to read: one token a character, and one for the task's fixed phrase."""

import re
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PHRASES = ("Spell this word backward (example: sun -> nus): ",)
CHARACTERS = tuple(chr(code) for code in range(32, 127))
SPECIAL = ("<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer() -> Any:
    """A PreTrainedTokenizerFast; `<|end|>` ends a message and a sequence."""
    vocabulary = {token: number for number, token in enumerate(SPECIAL + CHARACTERS + PHRASES)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    pieces = "|".join([*map(re.escape, PHRASES), r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
