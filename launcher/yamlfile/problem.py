"""What is wrong at a place of a file or of an option: one type for every reader; and YAML's syntax
errors in plain words.
"""

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
        by_line = sorted(problems, key=lambda problem: (not problem.line, problem.line))
        self.problems = tuple(by_line)
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


# -- PyYAML's errors in plain words -----------------------------------------------------------

_QUOTE = "put the text in quotes"
_EXPLANATIONS = (
    ("<document start>", "something after the end of the mapping", "keep one mapping in the file"),
    ("undefined alias", "an alias (*name) without its anchor (&name)", _QUOTE),
    ("scanning an a", "text that begins with * or &", _QUOTE),
    ("tag", "text that begins with !", _QUOTE),
    ("scanning a block scalar", "text that begins with | or >", _QUOTE),
    ("mapping values are not allowed", "a second ': ' on the line, or a wrong indentation",
     "put text that holds ': ' in quotes; give keys of one section one indentation"),
    ("could not find expected ':'", "a line that is no key: value", "write key: value"),
    ("quoted scalar", "quotes that are not closed, or a wrong escape in them",
     "close the quotes; write a backslash as two, or use single quotes"),
    ("flow", "a [ or { that is not closed, or lacks a comma", f"close it, or {_QUOTE}"),
    ("block", "a wrong indentation, or quotes that end before the text does",
     "give the keys of one section one indentation"),
)  # fmt: skip
"""Part of PyYAML's message, the problem in plain words, and the fix; the first match counts."""


def explain(message: str, character: str) -> tuple[str, str]:
    """The problem and the fix in plain words; PyYAML speaks of tokens and scanners.

    ``character`` stands where reading stopped; empty at the end of the text.
    """
    if character == "\t":
        return "a tab; YAML indents with spaces", "replace the tab by spaces"
    if "cannot start any token" in message and character:
        return f"text that begins with {character}", _QUOTE
    for part, problem, fix in _EXPLANATIONS:
        if part in message:
            return problem, fix
    return f"not valid YAML: {message.strip()}", "check indentation and quotes around this line"
