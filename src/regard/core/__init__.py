"""Attention itself: the textbook, the checked call, the function, the look."""
