"""Shell scripts as commands and words, each with its line. Nothing is run.

It knows quotes, comments, continued lines, substitutions, arrays and here-documents. It follows no
``source``, no function call and no loop: what depends on those has no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

DEEPER = ("if", "for", "while", "until", "case", "select", "{")
SHALLOWER = ("fi", "done", "esac", "}")
_KEYWORDS = {"if", "elif", "while", "until", "then", "else", "do", "!", "time", "{"}
DEEPEST = 30
"""Quotes and expansions inside of each other; a script with more is not read to its end."""
_PAIRS = {"(": ")", "{": "}"}

HERE, NODE = "\ue000", "\ue001"
"""Open the mark of a variable without a value: of the script's own shell, of one on each node."""
HERE_RUN, NODE_RUN = "\ue002", "\ue003"
"""Open the mark of a command's output."""
END, END_RUN = "\ue004", "\ue005"
SPLIT = "\ue006"
"""Where an expansion without quotes is split into words."""
MARKS = re.compile("[\ue000-\ue006]")


@dataclass(frozen=True, kw_only=True)
class ShellWord:
    """A word as it is written, quotes included, and the line that it begins on."""

    raw: str
    line: int


@dataclass(frozen=True, kw_only=True)
class ShellCommand:
    """A simple command: its words, without redirections.

    ``depth`` counts the conditions, loops and functions around it. ``is_background``: it ends with
    ``&``.
    """

    words: tuple[ShellWord, ...]
    line: int
    depth: int = 0
    is_background: bool = False


def parse_commands(text: str, first_line: int = 1) -> tuple[ShellCommand, ...]:
    """The commands of a script in the order written; what cannot be read ends it early."""
    return tuple(_Reader(text, first_line).read())


def skip_quoted(text: str, at: int, depth: int = 0) -> int:
    """The place behind what begins at ``at``: a quote, an escape, an expansion, a character."""
    char = text[at]
    if char == "\\":
        return at + 2
    if char in (HERE_RUN, NODE_RUN):
        return _after_mark(text, at)
    if char == "'":
        end = text.find("'", at + 1)
        return len(text) if end < 0 else end + 1
    if char == "`":
        return _until(text, at + 1, "`", depth)
    if char == '"':
        return _until(text, at + 1, '"', depth)
    if char == "$" and text[at + 1 : at + 2] in _PAIRS:
        return _until(text, at + 2, _PAIRS[text[at + 1]], depth)
    return at + 1


def _after_mark(text: str, at: int) -> int:
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] in (HERE_RUN, NODE_RUN)) - (text[place] == END_RUN)
        if not depth:
            return place + 1
    return len(text)


def _until(text: str, at: int, closing: str, depth: int = 0) -> int:
    """The place behind the next ``closing`` that is not inside of something else."""
    opened = 0
    while at < len(text) and depth < DEEPEST:
        char = text[at]
        if char == closing and not opened:
            return at + 1
        if closing == '"':
            at = at + 1 if char == "'" else skip_quoted(text, at, depth + 1)
            continue
        if closing == ")" and char in "()":
            opened += 1 if char == "(" else -1
        at = skip_quoted(text, at, depth + 1)
    return len(text)


class _Reader:
    """Goes through a script once, from left to right."""

    def __init__(self, text: str, first_line: int) -> None:
        self.text = text
        self.at = 0
        self.line = first_line
        self.depth = 0
        self.words: list[ShellWord] = []
        self.heredocs: list[tuple[str, bool]] = []

    def read(self) -> Iterator[ShellCommand]:
        while self.at < len(self.text):
            yield from self._step()
        yield from self._end()

    def _step(self) -> Iterator[ShellCommand]:
        text, at = self.text, self.at
        char = text[at]
        if char == "\n":
            yield from self._end()
            self._skip(1)
            self._skip_heredocs()
        elif text.startswith("\\\n", at):
            self._skip(2)
        elif char in " \t\r":
            self._skip(1)
        elif char == "#":
            end = text.find("\n", at)
            self._skip((len(text) if end < 0 else end) - at)
        elif found := re.compile(r"\d*(<<-?|<<<|&>>?|>>|>\||[<>]&|[<>])(?!\()").match(text, at):
            self._redirect(found)
        elif char in ";|&()":
            background = char == "&" and text[at + 1 : at + 2] != "&"
            yield from self._end(background)
            self._skip(1)
        else:
            self.words.append(self._word())

    def _skip(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _word(self) -> ShellWord:
        start, line, text = self.at, self.line, self.text
        while self.at < len(text):
            char = text[self.at]
            if text.startswith("\\\n", self.at):
                self._skip(2)
            elif char == "(" and re.search(r"[\w\]]\+?=$|[<>]$", text[start : self.at]):
                self._skip(_until(text, self.at + 1, ")") - self.at)
            elif char in "<>" and text[self.at + 1 : self.at + 2] == "(":
                self._skip(1)
            elif char in " \t\r\n;|&()<>":
                break
            else:
                self._skip(min(skip_quoted(text, self.at), len(text)) - self.at)
        raw = re.sub(r"(?<!\\)\\\n", "", text[start : self.at])
        return ShellWord(raw=raw, line=line)

    def _redirect(self, found: re.Match[str]) -> None:
        self._skip(found.end() - self.at)
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self._skip(1)
        if self.at < len(self.text) and self.text[self.at] not in "\n;|&()":
            target = self._word().raw
            if found[1] in ("<<", "<<-"):
                self.heredocs.append((re.sub(r"[\\'\"]", "", target), found[1] == "<<-"))

    def _skip_heredocs(self) -> None:
        for end_word, tabs in self.heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                stop = len(self.text) if end < 0 else end + 1
                row = self.text[self.at : stop].rstrip("\n")
                self._skip(stop - self.at)
                if (row.lstrip("\t") if tabs else row) == end_word:
                    break
        self.heredocs.clear()

    def _end(self, background: bool = False) -> Iterator[ShellCommand]:
        """The command that the words so far make, without the keywords in front of it."""
        words, self.words = self.words, []
        while words:
            first = words[0].raw
            self.depth += (first in DEEPER) - (first in SHALLOWER)
            if first not in _KEYWORDS and first not in SHALLOWER:
                break
            words = words[1:]
        if words:
            yield ShellCommand(
                words=tuple(words),
                line=words[0].line,
                depth=max(self.depth, 0),
                is_background=background,
            )
