"""PyYAML's loaders with YAML 1.2's rules for plain scalars: a careful one and a fast one."""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.composer import Composer

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
        """libyaml's parser under PyYAML's composer: the one in C overflows the stack on deep text,
        where this one raises RecursionError."""

        yaml_implicit_resolvers = CoreLoader.yaml_implicit_resolvers

        def __init__(self, text: str) -> None:
            Composer.__init__(self)
            yaml.CSafeLoader.__init__(self, text)

    FastLoader = _LibyamlLoader  # type: ignore[assignment]
