"""What the gallery's programs look at: one sentence, read by the embedded model."""

import os

os.environ.setdefault("TQDM_DISABLE", "1")

import torch

from regard.recording.capture import record
from regard.recording.models import resolve
from regard.recording.recording import Recording

SENTENCE = "The cat sat on the mat because it was tired."


def seen(text: str = SENTENCE) -> Recording:
    """A recording of the text."""
    model, tokenizer, name = resolve(None)
    with torch.inference_mode(), record(model, tokenizer=tokenizer) as recording:
        model(**tokenizer(text, return_tensors="pt"))
    recording.model = name
    return recording
