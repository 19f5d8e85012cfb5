"""Asking: attention from a question to the sentences of texts."""
