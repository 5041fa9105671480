"""What a person most likely meant by a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known word that is most like ``word``; empty if none is alike enough.

    ``cutoff``: how alike they have to be, 0 to 1.
    """
    import difflib  # takes 6 ms, and most words are known

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), "")
