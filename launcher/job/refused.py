"""The exception by which a check refuses a value of a job file; its message is made in
``problems``.
"""

from __future__ import annotations


class NotAcceptedError(ValueError):
    """A value that a job file may not hold: what is accepted there, and what to write instead.

    Without ``accepted`` the message has the words of the field's schema. ``found`` is what to show
    instead of the whole value, if that would say too much or too little.
    """

    def __init__(self, accepted: str = "", *, fix: str = "", found: str | None = None) -> None:
        super().__init__(f"accepted: {accepted}" if accepted else "not accepted")
        self.accepted = accepted
        self.fix = fix
        self.found = found
