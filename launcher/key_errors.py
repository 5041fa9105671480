"""Errors about one key of the job file that only the target could find."""

from __future__ import annotations

from launcher.errors import InputError


class KeyInputError(InputError):
    """A key is well-formed, and does not fit this machine or target; nothing was started.

    ``key`` is its path in the job file. The command line, which knows the file, puts the file and
    line in front.
    """

    def __init__(self, key: tuple[str | int, ...], what: str, hint: str) -> None:
        super().__init__(f"{'.'.join(map(str, key))}: {what}", hint)
        self.key = key
