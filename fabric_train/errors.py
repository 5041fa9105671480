"""The errors of a training that a person can act on."""

from __future__ import annotations


class InputError(Exception):
    """The input is wrong: shown without a stack trace, exit code 2.

    ``what`` names what was given and what is wrong with it; ``fix`` is what to do about it.
    Can be pickled, because rank 0 sends its refusal to the other ranks.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what, fix)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.fix}" if self.fix else self.what


class WorldMismatchError(RuntimeError):
    """Fabric built another world than torchrun's environment describes.

    An error and not a warning: processes that each act as rank 0 train separate models, overwrite
    each other's checkpoints and end with exit code 0.
    """


class DivergedError(RuntimeError):
    """A loss or a weight is not a finite number; raised before a checkpoint records it."""
