"""What is wrong at a place of a file or of an option: one type for every reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.contract.errors import InputError

if TYPE_CHECKING:
    from launcher.yamlfile.source import YamlSource

KeyPath = tuple[str | int, ...]
"""The path from the top of a file to a value: keys of mappings and 0-based places in lists."""

_MAX_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong, its place as in ``Entry``, and the fix to type.

    ``path`` is the key, empty if the problem is not about a key.
    """

    where: str
    line: int = 0
    path: KeyPath = ()
    what: str
    fix: str = ""

    def __str__(self) -> str:
        line = ": ".join(part for part in (self.where, render_key(self.path), self.what) if part)
        return f"{line}\n  fix: {self.fix}" if self.fix else line


@dataclass(frozen=True)
class Origin:
    """Where a text comes from: a file, or an option, which has no lines."""

    name: str
    is_file: bool = True

    def at(self, line: int) -> tuple[str, int]:
        """``file:line`` and the line, from 1; without a line, the name and 0."""
        return (f"{self.name}:{line}", line) if line and self.is_file else (self.name, 0)

    def error(self, what: str, fix: str, line: int = 0) -> FileError:
        """The error of a text that cannot be read at all."""
        where, line = self.at(line)
        return FileError([Problem(where=where, line=line, what=what, fix=fix)])


class FileError(InputError):
    """All that is wrong with a file and its options, in the order of the file, then the options.

    ``source`` is what could be read all the same, for a caller with problems of its own to report.
    """

    def __init__(self, problems: Sequence[Problem], source: YamlSource | None = None) -> None:
        self.problems = tuple(sorted(problems, key=lambda one: (not one.line, one.line)))
        self.source = source
        super().__init__("\n".join(str(problem) for problem in self.problems))


def render_key(path: KeyPath) -> str:
    """A path as ``--set`` takes it: ``mounts.0.target``."""
    return ".".join(render_value(str(part)) for part in path)


def render_value(text: str) -> str:
    """Text fit for one line of a terminal: no control characters, not too long."""
    if len(text) > _MAX_SHOWN:
        text = text[: _MAX_SHOWN - 3] + "..."
    return text if text.isprintable() and text == text.strip() else json.dumps(text)
