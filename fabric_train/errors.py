"""The errors of the training that a person can act on."""

from __future__ import annotations


class InputError(Exception):
    """What was given is wrong or does not fit; told without a stack trace, exit code 2.

    ``what`` names what was given and what is wrong with it; ``fix`` is what to do about it.
    Survives pickling, because rank 0 hands its refusal to the other ranks.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what, fix)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.fix}" if self.fix else self.what


class WorldMismatchError(RuntimeError):
    """Fabric built another world than torchrun's environment describes.

    Never a warning: processes that each believe to be rank 0 train separate models, overwrite
    each other's checkpoints and end with exit code 0.
    """


class DivergedError(RuntimeError):
    """The training loss is not a finite number; raised before a checkpoint would record it."""
