"""The public names: all that are promised, and no other."""

import regard

PUBLIC = {
    "Check",
    "Look",
    "Recording",
    "Steps",
    "Top",
    "Word",
    "ask",
    "attention",
    "combine",
    "load",
    "look",
    "merge",
    "record",
    "scores",
    "softmax",
    "steps",
    "threads",
}


def test_all_is_what_is_promised():
    assert set(regard.__all__) == PUBLIC


def test_all_is_sorted():
    assert list(regard.__all__) == sorted(regard.__all__)


def test_every_name_is_there_and_says_what_it_is():
    for name in sorted(PUBLIC):
        value = getattr(regard, name)
        assert value.__doc__, f"regard.{name} has no docstring"
        assert value.__name__ == name


def test_a_name_that_is_not_there():
    assert not hasattr(regard, "atention")
