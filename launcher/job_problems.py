"""What is wrong with a job file, in words: place, key, what was found, what is accepted, the fix.

The words for what is accepted come from the JSON Schema, so that messages, editors and
docs/job-file.md say the same.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from launcher.errors import InputError
from launcher.job_values import Conflict, RefusedError, slug
from launcher.yaml_source import KeyPath, YamlSource

Schema = Mapping[str, Any]

_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSW|PWD|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
_MAX_SHOWN = 60
_AFTER_THE_FILE = 2**31

_FAMILIAR = {
    "args": "command",
    "entrypoint": "command",
    "script": "command",
    "environment": "env",
    "volumes": "mounts",
    "working_dir": "workdir",
    "nodes": "nnodes",
    "num_nodes": "nnodes",
    "replicas": "nnodes",
    "nproc": "nproc_per_node",
    "cpu": "resources.cpus",
    "mem": "resources.memory",
    "shm_size": "resources.shm",
    "master_port": "rdzv.port",
    "backend": "rdzv.backend",
    "checkpoints": "checkpoint_dir",
    "stop_grace_period": "stop_grace_s",
}
"""Names from torchrun, compose files and Kubernetes that are spelled too differently to guess."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong; ``where`` is ``file:line`` or the option that gave the value."""

    where: str
    key: str
    says: str
    fix: str = ""

    def __str__(self) -> str:
        line = f"{self.where}: {self.key}: {self.says}"
        return f"{line}\n  fix: {self.fix}" if self.fix else line


class JobFileError(InputError):
    """All that is wrong with a job file, one ``Problem`` each."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def render_key(path: KeyPath) -> str:
    """A path as ``--set`` takes it: ``mounts.0.target``."""
    return ".".join(_shown(str(part)) for part in path)


def describe(schema: Schema, root: Schema) -> str:
    """What a schema accepts, in words."""
    if "$ref" in schema:
        return describe(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    if "anyOf" in schema:
        words = [describe(one, root) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "patternErrorMessage" in schema:
        return str(schema["patternErrorMessage"])
    if "enum" in schema:
        return " or ".join([", ".join(schema["enum"][:-1]), schema["enum"][-1]])
    if "const" in schema:
        return str(schema["const"])
    if isinstance(schema.get("type"), list):
        return "text, a number, true or false"
    return _describe_type(schema, root)


def _describe_type(schema: Schema, root: Schema) -> str:
    kind = schema["type"]
    if kind in ("integer", "number"):
        return f"a {'whole ' if kind == 'integer' else ''}number{_range(schema)}"
    if kind == "array":
        return f"a list of {describe(schema['items'], root)}"
    if kind == "object" and "properties" in schema:
        return f"the keys {', '.join(schema['properties'])}"
    return {"string": "text", "boolean": "true or false", "object": "name: value lines"}[str(kind)]


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" {low}..{high}"
    if "exclusiveMinimum" in schema:
        return f" > {schema['exclusiveMinimum']}"
    return "" if low is None else f" >= {low}"


def schema_at(root: Schema, path: KeyPath) -> Schema:
    """The part of the schema that governs ``path``; of what holds it where there is none."""
    node: Schema = root
    for part in path:
        node = _child(_resolve(node, root), part)
        if not node:
            return {}
    return _resolve(node, root)


def _resolve(node: Schema, root: Schema) -> Schema:
    while True:
        if "$ref" in node:
            node = root["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        elif "anyOf" in node and any("$ref" in one for one in node["anyOf"]):
            node = next(one for one in node["anyOf"] if "$ref" in one)
        else:
            return node


def _child(node: Schema, part: str | int) -> Schema:
    for one in [node, *node.get("anyOf", ())]:
        if isinstance(part, int) and "items" in one:
            return dict(one["items"])
        if part in one.get("properties", {}):
            return dict(one["properties"][part])
        for values in (one.get("additionalProperties"), *one.get("patternProperties", {}).values()):
            if isinstance(values, dict):
                return values
    return {}


def find_problems(
    error: ValidationError | None,
    conflicts: tuple[Conflict, ...],
    source: YamlSource,
    root: Schema,
) -> tuple[Problem, ...]:
    """Everything that is wrong, in the order of the file."""
    found = [*(_from_conflict(one, source) for one in conflicts)]
    if error is not None:
        found += _from_validation(error, source, root)
    return tuple(problem for _, problem in sorted(found, key=lambda pair: pair[0]))


Placed = tuple[tuple[int, int], Problem]


def _place(path: KeyPath, source: YamlSource) -> tuple[int, int]:
    entry = source.nearest(path)
    return entry.line or _AFTER_THE_FILE, entry.column


def _from_conflict(conflict: Conflict, source: YamlSource) -> Placed:
    return _place(conflict.path, source), Problem(
        where=source.nearest(conflict.path).where,
        key=render_key(conflict.path),
        says=f"found {_shown(conflict.found)}; accepted: {conflict.accepted}",
        fix=conflict.fix,
    )


def _from_validation(error: ValidationError, source: YamlSource, root: Schema) -> Iterator[Placed]:
    seen = set()
    for one in error.errors(include_url=False):
        path = tuple(part for part in one["loc"] if part != "[key]")
        path = _within(path, root)
        if one["type"] == "conflict" or path in seen:
            continue
        seen.add(path)
        yield _place(path, source), _problem(one, path, source, root)


def _within(path: KeyPath, root: Schema) -> KeyPath:
    """Without the names of a union's branches, which pydantic appends to the path."""
    known = path
    while len(known) > 1 and not schema_at(root, known[:-1]):
        known = known[:-1]
    if schema_at(root, known) or "properties" in schema_at(root, known[:-1]):
        return known
    return known[:-1]


def _problem(one: Any, path: KeyPath, source: YamlSource, root: Schema) -> Problem:
    where, key = source.nearest(path).where, render_key(path)
    if one["type"] == "extra_forbidden":
        return Problem(where=where, key=key, says=_unknown(path, root))
    if one["type"] == "missing":
        says = f"missing; accepted: {describe(schema_at(root, path), root)}"
        return Problem(where=where, key=key, says=says)
    cause = one.get("ctx", {}).get("error")
    refused = cause if isinstance(cause, RefusedError) else None
    accepted = refused.accepted if refused else describe(schema_at(root, path), root)
    found = refused.found if refused and refused.found else _found(one["input"], path, source)
    fix = refused.fix if refused else _fix(one["input"], path)
    return Problem(where=where, key=key, says=f"found {found}; accepted: {accepted}", fix=fix)


def _fix(value: object, path: KeyPath) -> str:
    if path == ("name",) and isinstance(value, str) and slug(value):
        return f"write {slug(value)}"
    return ""


def _unknown(path: KeyPath, root: Schema) -> str:
    keys = list(schema_at(root, path[:-1]).get("properties", {}))
    name, inside = str(path[-1]), render_key(path[:-1])
    everywhere = dict(_leaves(root, root))
    guess = difflib.get_close_matches(name.replace("-", "_"), keys, n=1)
    if guess:
        nearest = f"{inside}.{guess[0]}" if inside else guess[0]
        return f"unknown key; did you mean {nearest}?"
    for candidate in (_FAMILIAR.get(name.lower()), everywhere.get(name)):
        if candidate:
            return f"unknown key; did you mean {candidate}?"
    close = difflib.get_close_matches(name.replace("-", "_"), list(everywhere), n=1)
    if close:
        return f"unknown key; did you mean {everywhere[close[0]]}?"
    return f"unknown key; accepted: {', '.join(keys)}"


def _leaves(node: Schema, root: Schema, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each key by its own name, and as torchrun joins it (``rdzv_backend``), to its path."""
    for key, child in node.get("properties", {}).items():
        path = f"{prefix}{key}"
        yield from _leaves(_resolve(child, root), root, f"{path}.")
        yield path.replace(".", "_"), path
        yield key, path


def is_secret(path: KeyPath) -> bool:
    """Whether a value's name says that it may be a credential, which no message may show."""
    return len(path) > 1 and path[0] == "env" and bool(_SECRET_NAME.search(str(path[1])))


def _found(value: object, path: KeyPath, source: YamlSource) -> str:
    """The value as written, where that is one line; never what may be a credential."""
    if path in (("env",), ("secrets",)):
        return _kind(value)
    if is_secret(path):
        return "a value (hidden)"
    if isinstance(value, dict | list | tuple):
        return _kind(value)
    entry = source.entries.get(path)
    if entry is not None and entry.text is not None:
        return _shown(entry.written) or "nothing"
    return _shown(str(value)) if value is not None else "nothing"


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else "a single value"


def _shown(text: str) -> str:
    """Text fit for one line of a terminal: no control characters, not too long."""
    if len(text) > _MAX_SHOWN:
        text = text[: _MAX_SHOWN - 3] + "..."
    return text if text.isprintable() and text == text.strip() else json.dumps(text)
