"""The only reader of YAML: plain data, and the place of every key and value. Keys given twice, and
files that are too large or too deep, are refused.

Reads by YAML 1.2's core schema, not by PyYAML's YAML 1.1: only ``true`` and ``false`` are truth
values, ``NO`` and ``1:4`` are text, octal is ``0o17``. The data holds text, numbers, truth values,
lists and mappings only; a tag that asks for anything else is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.contract.errors import closest
from launcher.yamlfile.nodes import BOOL, FLOAT, INT, MAX_DEPTH, NULL, TAG, read_nodes
from launcher.yamlfile.problem import FileError, KeyPath, Origin, Problem

MAX_FILE_BYTES = 2**20
MAX_NODES = 20_000
"""The most values once aliases are followed; a few lines of nested aliases can mean billions."""
EMPTY = ("", "~", "null")
"""Documents that hold nothing, such as the one before a first ``---``."""
_MAX_DIGITS = 40
"""The most digits of a whole number; Python itself does not read thousands of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Where a value comes from and how it was written.

    ``where`` is ``file:line`` of the key (in a list, of the item), or the option that gave the
    value; ``line`` is that line, 0 for an option. ``text`` is a scalar's text before it was read as
    a number or truth value, None for lists and mappings; ``written`` includes the quotes.
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
        """The entry of ``path``, or of what holds it if the path itself is not written."""
        while path and path not in self.entries:
            path = path[:-1]
        return self.entries[path]

    def problem(self, path: KeyPath, what: str, fix: str = "") -> Problem:
        """What is wrong at ``path``, with its place."""
        entry = self.nearest(path)
        return Problem(where=entry.where, line=entry.line, path=path, what=what, fix=fix)


def parse_yaml(
    text: str,
    file: str,
    fix: str = "write key: value lines, such as name: digits",
    least: str = "name: and command:",
) -> YamlSource:
    """Parses the text of a file that holds one mapping; raises ``FileError``.

    ``fix`` is the fix if the file holds anything else, and ``least`` what an empty file needs.
    """
    origin = Origin(file)
    roots = read_nodes(text, origin, only_one=True)
    return _Builder(text, origin).build(_mappings(roots, origin, fix, least)[0])


def parse_documents(text: str, file: str) -> tuple[YamlSource, ...]:
    """Parses the documents of a file, all mappings; leaves empty ones out. Raises ``FileError``."""
    origin, fix = Origin(file), "write one object, with apiVersion: and kind:"
    roots = _mappings(read_nodes(text, origin), origin, fix, "apiVersion: and kind:")
    return tuple(_Builder(text, origin).build(root) for root in roots)


def parse_fragment(text: str, where: str) -> YamlSource:
    """Parses one value given outside a file, such as by an option; ``where`` names the option."""
    origin = Origin(where, is_file=False)
    roots = read_nodes(text, origin, only_one=True)
    if not roots:
        return YamlSource(data=None, entries={(): Entry(where=where, line=0, text="", written="")})
    return _Builder(text, origin).build(roots[0])


def read_text(path: Path | str, most_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of a YAML file, before parsing; raises ``FileError``, also for a larger file."""
    path, origin = Path(path), Origin(str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise origin.error("no such file", similar_file(path)) from None
    except IsADirectoryError:
        yaml_files = sorted(path.glob("*.yaml"))[:1]
        fix = f"name a file in it, such as {yaml_files[0]}" if yaml_files else "name a file"
        raise origin.error("is a folder, not a file", fix) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise origin.error(f"cannot be read: {reason}", "name a readable file") from None
    return decode_text(raw, str(path), most_bytes)


def decode_text(raw: bytes, file: str, most_bytes: int = MAX_FILE_BYTES) -> str:
    """The bytes of a YAML file as text; raises ``FileError``, also for more than ``most_bytes``."""
    origin = Origin(file)
    if len(raw) > most_bytes:
        what = f"larger than {most_bytes // 2**20} MiB, so not a YAML file"
        raise origin.error(what, "name the YAML file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise origin.error(what, "save the file as UTF-8", line) from None


def similar_file(path: Path) -> str:
    """The fix for a file that is not there."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"there is no folder {path.parent} either"
    close = closest(path.name, names)
    return f"did you mean {path.with_name(close)}?" if close else "check the path"


def _mappings(roots: list[yaml.Node], origin: Origin, fix: str, least: str) -> list[yaml.Node]:
    """The documents that are not empty. Raises ``FileError`` if none is, or one is no mapping."""
    full = [r for r in roots if not (isinstance(r, yaml.ScalarNode) and r.value in EMPTY)]
    if not full:
        raise origin.error("the file is empty", f"write at least {least}", 1)
    for root in full:
        if not isinstance(root, yaml.MappingNode):
            kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
            what = f"found {kind} at the top; accepted: a mapping"
            raise origin.error(what, fix, _line(root))
    return full


# -- nodes to data ----------------------------------------------------------------------------


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


class _Builder:
    """Turns nodes into data, once; keeps the limits, and the entries and problems found."""

    def __init__(self, text: str, origin: Origin) -> None:
        self._text, self._origin = text, origin
        self._entries: dict[KeyPath, Entry] = {}
        self._problems: list[Problem] = []
        self._left = MAX_NODES

    def build(self, root: yaml.Node) -> YamlSource:
        source = YamlSource(data=self._value(root, (), root), entries=self._entries)
        if self._problems:
            raise FileError(self._problems, source)
        return source

    def _refuse(self, node: yaml.Node, path: KeyPath, what: str, fix: str) -> None:
        where, line = self._origin.at(_line(node))
        self._problems.append(Problem(where=where, line=line, path=path, what=what, fix=fix))

    def _spend(self, node: yaml.Node, depth: int) -> None:
        self._left -= 1
        if depth > MAX_DEPTH:
            what = f"nested deeper than {MAX_DEPTH} levels, or an alias inside of its own anchor"
            raise self._origin.error(what, f"use at most {MAX_DEPTH} levels", _line(node))
        if self._left < 0:
            what = f"more than {MAX_NODES} values once aliases are followed"
            raise self._origin.error(what, "use fewer aliases", _line(node))

    def _value(self, node: yaml.Node, path: KeyPath, key: yaml.Node) -> Any:
        self._spend(node, len(path))
        text = self._clean(node, path) if isinstance(node, yaml.ScalarNode) else None
        where, line = self._origin.at(_line(key))
        self._entries[path] = Entry(where=where, line=line, text=text, written=self._written(node))
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
        # leave out an anchor or a tag in front
        return self._text[self._text.index(node.style, start) : end] if node.style else node.value

    def _pairs(self, node: yaml.Node, path: KeyPath, depth: int) -> _Pairs:
        """A mapping's keys and values; its own keys win over merged ones, earlier merges over
        later ones."""
        self._spend(node, depth)
        direct: _Pairs = {}
        merged: _Pairs = {}
        for key, value in node.value:
            if key.tag == TAG + "merge":
                merged = self._merged(key, value, path, depth) | merged
            elif not isinstance(key, yaml.ScalarNode) or not key.value:
                self._refuse(key, path, "a key that is no name", "write name: value")
            else:
                name = self._clean(key, path)  # as written: NO and 8080 are meant as names
                if name in direct:
                    first, _ = self._origin.at(_line(direct[name][0]))
                    what = f"given a second time; the first is {first}"
                    self._refuse(key, (*path, name), what, "remove one of the two")
                direct.setdefault(name, (key, value))
        return merged | direct

    def _merged(self, key: yaml.Node, value: yaml.Node, path: KeyPath, depth: int) -> _Pairs:
        merged: _Pairs = {}
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if isinstance(source, yaml.MappingNode):
                merged = self._pairs(source, path, depth + 1) | merged
            else:
                fix = "write <<: *name, with &name at a mapping"
                self._refuse(key, path, "<< merges mappings only", fix)
        return merged

    def _clean(self, node: yaml.Node, path: KeyPath) -> str:
        """A scalar's text; JSON writes characters beyond U+FFFF as two escapes, joined here."""
        if node.value.isascii() and "\0" not in node.value:
            return str(node.value)
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
