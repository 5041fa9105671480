"""The only reader of YAML: plain data, and for every key and value the place it was written at.

Reads by YAML 1.2's core schema, not by PyYAML's YAML 1.1: only ``true`` and ``false`` are truth
values, ``NO`` and ``1:4`` are text, octal is ``0o17``. Nothing but text, numbers, truth values,
lists and mappings can come out; a tag that would make anything else is refused.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.contract.errors import InputError
from launcher.yamlfile.loaders import BOOL, FLOAT, INT, NULL, TAG, CoreLoader, FastLoader
from launcher.yamlfile.words import explain

KeyPath = tuple[str | int, ...]
"""From the top of the file to a value: keys of mappings and 0-based places in lists."""

MAX_FILE_BYTES = 2**20
MAX_NODES = 20_000
"""Values after aliases are followed; a few lines of nested aliases can stand for billions."""
MAX_DEPTH = 40
EMPTY = ("", "~", "null")
"""Documents that say nothing, such as what lies before a first ``---``."""

_MAX_DIGITS = 40
"""Of a whole number; Python itself refuses to read thousands of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Where a value comes from and how it was written.

    ``where`` is ``file:line`` of the key (of the item, in a list), or the option that gave the
    value; ``line`` and ``column`` are 1-based and those of the value itself, ``line`` 0 where an
    option gave it. ``text`` is a
    scalar's text before it was read as a number or truth value, ``None`` for lists and mappings;
    ``written`` is what stands in the file, quotes included.
    """

    where: str
    line: int
    column: int
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Flaw:
    """One thing in valid YAML that this project refuses, such as a key given twice."""

    where: str
    line: int
    path: KeyPath
    what: str
    fix: str


class YamlError(InputError):
    """The text is no YAML that this project reads; ``what`` starts with file and line.

    Where the rest could be read, ``source`` holds it and ``flaws`` what was refused in it, so
    that a caller can report its own findings beside them.
    """

    def __init__(
        self,
        what: str,
        hint: str,
        *,
        source: YamlSource | None = None,
        flaws: tuple[Flaw, ...] = (),
    ) -> None:
        super().__init__(what, hint)
        self.source = source
        self.flaws = flaws


def parse_yaml(text: str, file: str) -> YamlSource:
    """Parses the text of a file that holds one mapping; raises ``YamlError``."""
    root = _compose(text, file)
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        raise YamlError(f"{file}:1: the file is empty", "write at least name: and command:")
    if not isinstance(root, yaml.MappingNode):
        raise YamlError(
            f"{_at(file, root.start_mark)}: found {_kind(root)} at the top; accepted: a mapping",
            "write key: value lines, such as name: digits",
        )
    return _Builder(text, file).build_source(root)


def parse_documents(text: str, file: str) -> tuple[YamlSource, ...]:
    """Parses each document of a file that may hold several, all mappings; empty ones are left out.

    Raises ``YamlError`` for the first that is none.
    """
    roots = _compose_all(text, file)
    if not roots:
        raise YamlError(f"{file}:1: the file is empty", "write at least apiVersion: and kind:")
    for root in roots:
        if not isinstance(root, yaml.MappingNode):
            what = f"{_at(file, root.start_mark)}: found {_kind(root)}; accepted: a mapping"
            raise YamlError(what, "write one object, with apiVersion: and kind:")
    return tuple(_Builder(text, file).build_source(root) for root in roots)


def parse_fragment(text: str, where: str) -> YamlSource:
    """Parses one value given outside a file, as by an option, which ``where`` names."""
    root = _compose(text, where, is_file=False)
    if root is None:
        empty = Entry(where=where, line=0, column=0, text="", written="")
        return YamlSource(data=None, entries={(): empty})
    return _Builder(text, where, is_file=False).build_source(root)


def read_text(path: Path | str) -> str:
    """The text of a YAML file, before parsing; raises ``YamlError``."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise YamlError(f"{path}: no such file", _similar_file(path)) from None
    except IsADirectoryError:
        found = sorted(path.glob("*.yaml"))[:1]
        fix = f"name a file in it, such as {found[0]}" if found else "name a file"
        raise YamlError(f"{path}: is a folder, not a file", fix) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise YamlError(f"{path}: cannot be read: {reason}", "name a readable file") from None
    if len(raw) > MAX_FILE_BYTES:
        raise YamlError(f"{path}: larger than 1 MiB, so not a YAML file", "name the YAML file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"{path}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8"
        raise YamlError(what, "save the file as UTF-8") from None


def _similar_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"there is no folder {path.parent} either"
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.with_name(close[0])}?" if close else "check the path"


# -- text to nodes ----------------------------------------------------------------------------


def _compose(text: str, file: str, *, is_file: bool = True) -> yaml.Node | None:
    with _yaml_errors(text, file, is_file=is_file), _loader(text) as loader:
        node: yaml.Node | None = loader.get_single_node()
        return node


def _compose_all(text: str, file: str) -> list[yaml.Node]:
    try:
        roots = _nodes(text, FastLoader)
    except (yaml.YAMLError, RecursionError, ValueError):  # once more, for place and words
        with _yaml_errors(text, file, is_file=True):
            roots = _nodes(text, CoreLoader)
    return [r for r in roots if not (isinstance(r, yaml.ScalarNode) and r.value in EMPTY)]


def _nodes(text: str, kind: type[yaml.SafeLoader]) -> list[yaml.Node]:
    with _loader(text, kind) as loader:
        found = []
        while loader.check_node():
            found.append(loader.get_node())
        return [node for node in found if node is not None]


@contextlib.contextmanager
def _loader(text: str, kind: type[yaml.SafeLoader] = CoreLoader) -> Iterator[yaml.SafeLoader]:
    loader = kind(text)
    try:
        yield loader
    finally:
        loader.dispose()


@contextlib.contextmanager
def _yaml_errors(text: str, file: str, *, is_file: bool) -> Iterator[None]:
    """Turns PyYAML's errors into ``YamlError``."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        message, mark = f"{error.context or ''} {error.problem or ''}", error.problem_mark
        opened = any(word in message for word in ("flow", "quoted", "simple key"))
        place = (error.context_mark if opened else None) or mark
        where = _at(file, place) if is_file and place is not None else file
        problem, fix = explain(message, text, mark)
        raise YamlError(f"{where}: {problem}", fix) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"{file}:{line}" if is_file else file
        raise YamlError(f"{what}: a control character in the text", "remove it") from None
    except RecursionError:
        raise YamlError(f"{file}: nested too deeply", f"at most {MAX_DEPTH} levels") from None
    except (ValueError, OverflowError):
        what = f"{file}: an escape in double quotes that stands for no character"
        raise YamlError(what, "write a backslash as two, or use single quotes") from None


def _at(file: str, mark: yaml.Mark) -> str:
    return f"{file}:{mark.line + 1}"


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "a single value"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


# -- nodes to data ----------------------------------------------------------------------------


class _Builder:
    """Turns nodes into data, once; holds the limits and what was found on the way."""

    def __init__(self, text: str, file: str, *, is_file: bool = True) -> None:
        self._text = text
        self._file = file
        self._is_file = is_file
        self._entries: dict[KeyPath, Entry] = {}
        self._flaws: list[Flaw] = []
        self._left = MAX_NODES

    def build_source(self, root: yaml.Node) -> YamlSource:
        source = YamlSource(data=self._value(root, (), root), entries=self._entries)
        if not self._flaws:
            return source
        lines = [f"{flaw.where}: {flaw.what}\n  fix: {flaw.fix}" for flaw in self._flaws]
        raise YamlError("\n".join(lines), "", source=source, flaws=tuple(self._flaws))

    def _where(self, node: yaml.Node) -> str:
        return _at(self._file, node.start_mark) if self._is_file else self._file

    def _line(self, node: yaml.Node) -> int:
        return node.start_mark.line + 1 if self._is_file else 0

    def _refuse(self, node: yaml.Node, path: KeyPath, what: str, fix: str) -> None:
        where, line = self._where(node), self._line(node)
        self._flaws.append(Flaw(where=where, line=line, path=path, what=what, fix=fix))

    def _spend(self, node: yaml.Node, depth: int) -> None:
        self._left -= 1
        if depth > MAX_DEPTH:
            what = f"nested deeper than {MAX_DEPTH} levels, or an alias inside of its own anchor"
            raise YamlError(f"{self._where(node)}: {what}", "write it flatter")
        if self._left < 0:
            what = f"more than {MAX_NODES} values once aliases are followed"
            raise YamlError(f"{self._where(node)}: {what}", "use fewer aliases")

    def _value(self, node: yaml.Node, path: KeyPath, key: yaml.Node) -> Any:
        self._spend(node, len(path))
        text = self._clean(node, path) if isinstance(node, yaml.ScalarNode) else None
        self._entries[path] = Entry(
            where=self._where(key),
            line=self._line(node),
            column=node.start_mark.column + 1,
            text=text,
            written=self._written(node),
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
                self._refuse(key, path, "<< merges mappings only", "merge an alias of a mapping")
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
