"""The embedded model and what is recorded of it, loaded once for all tests of a process."""

from functools import cache

import torch
from transformers import AutoModel

from regard.recording.capture import record
from regard.recording.models import resolve

CAT = "The cat sat on the mat because it was tired."
BANK = "John went to the bank to deposit money."


@cache
def loaded(which=None):
    """The model that the command would load, its tokenizer and its name."""
    return resolve(which)


@cache
def recorded(text=CAT):
    """A recording of a text, as the command makes it."""
    model, tokenizer, name = loaded()
    with torch.inference_mode(), record(model, tokenizer=tokenizer) as seen:
        model(**tokenizer(text, return_tensors="pt"))
    seen.model = name
    return seen


@cache
def eager(text=CAT):
    """(layers, heads, T, T): the weights that the same model's eager attention gives back."""
    model, tokenizer, _ = loaded()
    plain = AutoModel.from_pretrained(model.config.name_or_path, attn_implementation="eager")
    with torch.inference_mode():
        given = plain.eval()(**tokenizer(text, return_tensors="pt"), output_attentions=True)
    return torch.stack(given.attentions)[:, 0].double().numpy()
