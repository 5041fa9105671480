"""The only reader of YAML: plain data, and the place of every key and value.

Reads by YAML 1.2's core schema, not by PyYAML's YAML 1.1: only ``true`` and ``false`` are truth
values, ``NO`` and ``1:4`` are text, octal is ``0o17``. The data holds text, numbers, truth values,
lists and mappings only; a tag that asks for anything else is refused.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.yamlfile.loaders import BOOL, FLOAT, INT, NULL, TAG, CoreLoader, FastLoader
from launcher.yamlfile.messages import explain
from launcher.yamlfile.problem import FileError, KeyPath, Problem

MAX_FILE_BYTES = 2**20
MAX_NODES = 20_000
"""Values after aliases are followed; a few lines of nested aliases can stand for billions."""
MAX_DEPTH = 40
EMPTY = ("", "~", "null")
"""Documents that hold nothing, such as the one before a first ``---``."""

_MAX_DIGITS = 40
"""The most digits of a whole number; Python itself does not read thousands of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Where a value comes from and how it was written.

    ``where`` is ``file:line`` of the key (of the item, in a list), or the option that gave the
    value; ``line`` is the same line as a number, 0 for an option. ``text`` is a scalar's text
    before it was read as a number or truth value, ``None`` for lists and mappings; ``written`` is
    what stands in the file, quotes included.
    """

    where: str
    line: int
    text: str | None
    written: str


@dataclass(frozen=True, kw_only=True)
class YamlSource:
    """What was read: ``data`` as plain Python values, and an entry for every value's path."""

    data: Any
    entries: dict[KeyPath, Entry]

    def nearest(self, path: KeyPath) -> Entry:
        """The entry of ``path``, or of what holds it where the path itself is not written."""
        while path and path not in self.entries:
            path = path[:-1]
        return self.entries[path]

    def problem(self, path: KeyPath, what: str, fix: str = "") -> Problem:
        """What is wrong at ``path``, with its place."""
        entry = self.nearest(path)
        return Problem(where=entry.where, line=entry.line, path=path, what=what, fix=fix)


def parse_yaml(text: str, file: str) -> YamlSource:
    """Parses the text of a file that holds one mapping; raises ``FileError``."""
    fix = "write key: value lines, such as name: digits"
    roots = _mappings(_read_nodes(text, file, only_one=True), file, fix, "name: and command:")
    return _Builder(text, file).build_source(roots[0])


def parse_documents(text: str, file: str) -> tuple[YamlSource, ...]:
    """Parses each document of a file that may hold several, all mappings; empty ones are left out.

    Raises ``FileError``.
    """
    fix = "write one object, with apiVersion: and kind:"
    roots = _mappings(_read_nodes(text, file), file, fix, "apiVersion: and kind:")
    return tuple(_Builder(text, file).build_source(root) for root in roots)


def parse_fragment(text: str, where: str) -> YamlSource:
    """Parses one value given outside a file, as by an option, which ``where`` names."""
    roots = _read_nodes(text, where, is_file=False, only_one=True)
    if not roots:
        return YamlSource(data=None, entries={(): Entry(where=where, line=0, text="", written="")})
    return _Builder(text, where, is_file=False).build_source(roots[0])


def read_text(path: Path | str) -> str:
    """The text of a YAML file, before parsing; raises ``FileError``."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _error(str(path), "no such file", _similar_file(path)) from None
    except IsADirectoryError:
        found = sorted(path.glob("*.yaml"))[:1]
        fix = f"name a file in it, such as {found[0]}" if found else "name a file"
        raise _error(str(path), "is a folder, not a file", fix) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _error(str(path), f"cannot be read: {reason}", "name a readable file") from None
    if len(raw) > MAX_FILE_BYTES:
        raise _error(str(path), "larger than 1 MiB, so not a YAML file", "name the YAML file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise _error(str(path), what, "save the file as UTF-8", line) from None


def _similar_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"there is no folder {path.parent} either"
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.with_name(close[0])}?" if close else "check the path"


def _error(file: str, what: str, fix: str, line: int = 0) -> FileError:
    """A file that cannot be read, at a line of it; 0 where none is known, or it is an option."""
    where = f"{file}:{line}" if line else file
    return FileError([Problem(where=where, line=line, what=what, fix=fix)])


# -- text to nodes ----------------------------------------------------------------------------


def _read_nodes(
    text: str, file: str, *, is_file: bool = True, only_one: bool = False
) -> list[yaml.Node]:
    """The root of each document. Raises ``FileError``."""
    try:
        found = _compose(text, FastLoader)
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError):
        found = _compose_carefully(text, file, is_file=is_file)
    if only_one and len(found) > 1:
        line = found[1][0] if is_file else 0
        fix = "keep one document: drop the --- line"
        raise _error(file, "a second document begins here", fix, line)
    return [root for _, root in found]


def _compose(text: str, kind: type[yaml.SafeLoader]) -> list[tuple[int, yaml.Node]]:
    """Each document's line and root."""
    loader = kind(text)
    try:
        found: list[tuple[int, yaml.Node]] = []
        while loader.check_node():
            mark: yaml.Mark = loader.peek_event().start_mark  # type: ignore[no-untyped-call]
            root = loader.get_node()
            assert root is not None
            found.append((mark.line + 1, root))
        return found
    finally:
        loader.dispose()


def _compose_carefully(text: str, file: str, *, is_file: bool) -> list[tuple[int, yaml.Node]]:
    """The same by PyYAML's own parser, whose errors have a place. Raises ``FileError``."""
    try:
        return _compose(text, CoreLoader)
    except yaml.MarkedYAMLError as error:
        message, mark = f"{error.context or ''} {error.problem or ''}", error.problem_mark
        opened = any(word in message for word in ("flow", "quoted", "simple key"))
        place = (error.context_mark if opened else None) or mark
        line = place.line + 1 if is_file and place is not None else 0
        raise _error(file, *explain(message, text, mark), line) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if is_file else 0
        raise _error(file, "a control character in the text", "remove it", line) from None
    except RecursionError:
        raise _error(file, "nested too deeply", f"at most {MAX_DEPTH} levels") from None
    except (ValueError, OverflowError):
        what = "an escape in double quotes that stands for no character"
        fix = "write a backslash as two, or use single quotes"
        raise _error(file, what, fix) from None


def _mappings(roots: list[yaml.Node], file: str, fix: str, least: str) -> list[yaml.Node]:
    """The documents that are not empty. Raises ``FileError`` for none, and for one that is no
    mapping."""
    full = [r for r in roots if not (isinstance(r, yaml.ScalarNode) and r.value in EMPTY)]
    if not full:
        raise _error(file, "the file is empty", f"write at least {least}", 1)
    for root in full:
        if not isinstance(root, yaml.MappingNode):
            found = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
            what = f"found {found} at the top; accepted: a mapping"
            raise _error(file, what, fix, root.start_mark.line + 1)
    return full


# -- nodes to data ----------------------------------------------------------------------------


class _Builder:
    """Turns nodes into data, once; holds the limits and what was found on the way."""

    def __init__(self, text: str, file: str, *, is_file: bool = True) -> None:
        self._text = text
        self._file = file
        self._is_file = is_file
        self._entries: dict[KeyPath, Entry] = {}
        self._problems: list[Problem] = []
        self._left = MAX_NODES

    def build_source(self, root: yaml.Node) -> YamlSource:
        source = YamlSource(data=self._value(root, (), root), entries=self._entries)
        if self._problems:
            raise FileError(self._problems, source)
        return source

    def _line(self, node: yaml.Node) -> int:
        return node.start_mark.line + 1 if self._is_file else 0

    def _where(self, node: yaml.Node) -> str:
        return f"{self._file}:{self._line(node)}" if self._is_file else self._file

    def _refuse(self, node: yaml.Node, path: KeyPath, what: str, fix: str) -> None:
        where, line = self._where(node), self._line(node)
        self._problems.append(Problem(where=where, line=line, path=path, what=what, fix=fix))

    def _spend(self, node: yaml.Node, depth: int) -> None:
        self._left -= 1
        if depth > MAX_DEPTH:
            what = f"nested deeper than {MAX_DEPTH} levels, or an alias inside of its own anchor"
            raise _error(self._file, what, f"use at most {MAX_DEPTH} levels", self._line(node))
        if self._left < 0:
            what = f"more than {MAX_NODES} values once aliases are followed"
            raise _error(self._file, what, "use fewer aliases", self._line(node))

    def _value(self, node: yaml.Node, path: KeyPath, key: yaml.Node) -> Any:
        self._spend(node, len(path))
        text = self._clean(node, path) if isinstance(node, yaml.ScalarNode) else None
        self._entries[path] = Entry(
            where=self._where(key), line=self._line(key), text=text, written=self._written(node)
        )
        if text is not None:
            return self._scalar(node, path, text)
        expected = "seq" if isinstance(node, yaml.SequenceNode) else "map"
        if node.tag != TAG + expected:
            self._refuse_tag(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, i), item) for i, item in enumerate(node.value)]
        pairs = self._pairs(node, path, len(path))
        return {name: self._value(item, (*path, name), key) for name, (key, item) in pairs.items()}

    def _written(self, node: yaml.Node) -> str:
        start, end = node.start_mark.index, node.end_mark.index
        if not isinstance(node, yaml.ScalarNode) or node.style in ("|", ">"):
            return self._text[start:end].rstrip()
        # an anchor or a tag stands in front
        return self._text[self._text.index(node.style, start) : end] if node.style else node.value

    def _pairs(self, node: yaml.Node, path: KeyPath, depth: int) -> _Pairs:
        """A mapping's keys and values; its own keys win over merged ones, earlier merges over
        later ones."""
        self._spend(node, depth)
        own: _Pairs = {}
        merged: _Pairs = {}
        for key, value in node.value:
            if key.tag == TAG + "merge":
                merged = self._merged(key, value, path, depth) | merged
            elif not isinstance(key, yaml.ScalarNode) or not key.value:
                self._refuse(key, path, "a key that is no name", "write name: value")
            else:
                name = self._clean(key, path)  # as written: NO and 8080 are meant as names
                if name in own:
                    what = f"given a second time; the first is {self._where(own[name][0])}"
                    self._refuse(key, (*path, name), what, "remove one of the two")
                own.setdefault(name, (key, value))
        return merged | own

    def _merged(self, key: yaml.Node, value: yaml.Node, path: KeyPath, depth: int) -> _Pairs:
        merged: _Pairs = {}
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if isinstance(source, yaml.MappingNode):
                merged = self._pairs(source, path, depth + 1) | merged
            else:
                self._refuse(
                    key, path, "<< merges mappings only", "write <<: *name, with &name at a mapping"
                )
        return merged

    def _clean(self, node: yaml.Node, path: KeyPath) -> str:
        """A scalar's text; JSON writes characters beyond U+FFFF as two escapes, joined here."""
        joined = node.value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if joined.count("\ufffd") > node.value.count("\ufffd") or "\0" in joined:
            self._refuse(node, path, "a character that is no text (NUL or surrogate)", "remove it")
        return str(joined).replace("\0", "\ufffd")

    def _scalar(self, node: yaml.Node, path: KeyPath, text: str) -> str | int | float | bool | None:
        kind = node.tag.removeprefix(TAG)
        if kind in ("str", "merge"):  # a merge is one only as a key
            return text
        if kind == "null" and NULL.fullmatch(text):
            return None
        if kind == "bool" and BOOL.fullmatch(text):
            return text.lower() == "true"
        if kind == "int" and INT.fullmatch(text) and len(text) <= _MAX_DIGITS:
            return int(text, 0) if text[1:2] in ("o", "x") else int(text)
        if kind == "float" and FLOAT.fullmatch(text):
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        self._refuse_tag(node, path)
        return text

    def _refuse_tag(self, node: yaml.Node, path: KeyPath) -> None:
        if INT.fullmatch(str(node.value)):
            what = f"a whole number of more than {_MAX_DIGITS} digits"
            self._refuse(node, path, what, "put it in quotes if it is no number")
        else:
            tag = node.tag.replace(TAG, "!!")
            self._refuse(node, path, f"the tag {tag} is not accepted here", "remove the tag")


_Pairs = dict[str, tuple[yaml.Node, yaml.Node]]
