"""From text to YAML's nodes with PyYAML, by YAML 1.2: which plain words are numbers, truth values
(``NO`` is text) or null.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.composer import Composer

from launcher.yamlfile.problem import Origin, explain

MAX_DEPTH = 40
TAG = "tag:yaml.org,2002:"
INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
NULL = re.compile(r"null|Null|NULL|~|")
MERGE = re.compile(r"<<")


class CoreLoader(yaml.SafeLoader):
    """PyYAML's own scanner and parser, whose errors know their place."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)


for _name, _pattern, _first in (
    ("merge", MERGE, "<"),
    ("null", NULL, ["n", "N", "~", ""]),
    ("bool", BOOL, "tTfF"),
    ("int", INT, "-+0123456789"),
    ("float", FLOAT, "-+.0123456789"),
):
    CoreLoader.add_implicit_resolver(TAG + _name, re.compile(f"^(?:{_pattern.pattern})$"), _first)

FastLoader: type[yaml.SafeLoader] = CoreLoader
"""libyaml's parser, if PyYAML was built with it: several times faster, but with poorer errors."""

if hasattr(yaml, "CSafeLoader"):

    class _LibyamlLoader(Composer, yaml.CSafeLoader):
        """libyaml's parser under PyYAML's composer in Python, which raises ``RecursionError`` on
        deep text; the composer in C overflows the stack."""

        yaml_implicit_resolvers = CoreLoader.yaml_implicit_resolvers

        def __init__(self, text: str) -> None:
            Composer.__init__(self)
            yaml.CSafeLoader.__init__(self, text)

    FastLoader = _LibyamlLoader  # type: ignore[assignment]


def read_nodes(text: str, origin: Origin, *, only_one: bool = False) -> list[yaml.Node]:
    """The root of each document. Raises ``FileError``."""
    try:
        composed = _compose(text, FastLoader)
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError):
        composed = _compose_carefully(text, origin)
    if only_one and len(composed) > 1:
        fix = "keep one document: drop the --- line"
        raise origin.error("a second document begins here", fix, composed[1][0])
    return [root for _, root in composed]


def _compose(text: str, kind: type[yaml.SafeLoader]) -> list[tuple[int, yaml.Node]]:
    """Each document's line and root."""
    loader = kind(text)
    try:
        documents: list[tuple[int, yaml.Node]] = []
        while loader.check_node():
            mark: yaml.Mark = loader.peek_event().start_mark  # type: ignore[no-untyped-call]
            root = loader.get_node()
            assert root is not None
            documents.append((mark.line + 1, root))
        return documents
    finally:
        loader.dispose()


def _compose_carefully(text: str, origin: Origin) -> list[tuple[int, yaml.Node]]:
    """As ``_compose``, by PyYAML's own parser, whose errors have a place. Raises ``FileError``."""
    try:
        return _compose(text, CoreLoader)
    except yaml.MarkedYAMLError as error:
        message, mark = f"{error.context or ''} {error.problem or ''}", error.problem_mark
        opened = any(word in message for word in ("flow", "quoted", "simple key"))
        place = (error.context_mark if opened else None) or mark
        line = 0 if place is None else place.line + 1
        character = text[mark.index : mark.index + 1] if mark is not None else ""
        raise origin.error(*explain(message, character), line) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise origin.error("a control character in the text", "remove it", line) from None
    except RecursionError:
        raise origin.error("nested too deeply", f"at most {MAX_DEPTH} levels") from None
    except (ValueError, OverflowError):
        what = "an escape in double quotes that stands for no character"
        fix = "write a backslash as two, or use single quotes"
        raise origin.error(what, fix) from None
