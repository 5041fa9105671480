"""What is wrong with a job file, in words: place, key, what was found, what is accepted, the fix.

The words for what is accepted come from the JSON Schema, so that messages, editors and
docs/job-file.md say the same.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from launcher.job.conflicts import Conflict
from launcher.job.values import RefusedError
from launcher.yamlfile.problem import KeyPath, Problem, render_key, render_value
from launcher.yamlfile.source import YamlSource

Schema = Mapping[str, Any]

_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSW|PWD|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
_OF_THE_KEY = "[key]"
"""How pydantic marks that a mapping's key is refused, and not its value."""

_TRUTH = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}

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


def describe(schema: Schema, root: Schema) -> str:
    """What a schema accepts, in words."""
    if "$ref" in schema:
        return describe(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    if "errorMessage" in schema:
        return str(schema["errorMessage"])
    if "anyOf" in schema:
        words = [describe(one, root) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "enum" in schema:
        return " or ".join([", ".join(schema["enum"][:-1]), schema["enum"][-1]])
    return _describe_type(schema, root)


def _describe_type(schema: Schema, root: Schema) -> str:
    kind = schema["type"]
    if kind in ("integer", "number"):
        return f"a {'whole ' if kind == 'integer' else ''}number{_range(schema)}"
    if kind == "array":
        return f"a list of {describe(schema['items'], root)}"
    if kind == "object" and "properties" in schema:
        keys = list(schema["properties"])
        return f"the key{'s' if len(keys) > 1 else ''} {', '.join(keys)}"
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
        node = _child(resolve(node, root), part)
        if not node:
            return {}
    return resolve(node, root)


def resolve(node: Schema, root: Schema) -> Schema:
    """The schema behind a reference, or behind a reference that may also be left empty."""
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
        if isinstance(one.get("additionalProperties"), dict):
            return dict(one["additionalProperties"])
    return {}


def find_problems(
    error: ValidationError | None,
    conflicts: tuple[Conflict, ...],
    source: YamlSource,
    root: Schema,
) -> Iterator[Problem]:
    """What pydantic found and what only two keys together show, each with its place."""
    for conflict in conflicts:
        what = f"found {render_value(conflict.found)}; accepted: {conflict.accepted}"
        yield source.problem(conflict.path, what, conflict.fix)
    for one in error.errors(include_url=False) if error is not None else ():
        if one["type"] != "conflict":
            path = tuple(part for part in one["loc"] if part != _OF_THE_KEY)
            yield source.problem(path, *_reason(one, path, source, root))


def _reason(one: Any, path: KeyPath, source: YamlSource, root: Schema) -> tuple[str, str]:
    """What is wrong, and the fix, of one of pydantic's errors."""
    if one["type"] == "extra_forbidden":
        return _unknown(path, root), ""
    schema = schema_at(root, path)
    if one["type"] == "missing":
        return f"missing; accepted: {describe(schema, root)}", ""
    cause = one.get("ctx", {}).get("error")
    if not isinstance(cause, RefusedError):
        cause = RefusedError(describe(schema, root))
    found = cause.found or _found(one, path, source)
    fix = cause.fix or _fix(path, source, schema)
    return f"found {render_value(found)}; accepted: {cause.accepted}", fix


def _fix(path: KeyPath, source: YamlSource, schema: Schema) -> str:
    """The value that was most likely meant, where that can be told."""
    entry = source.entries.get(path)
    if entry is None or entry.text is None:
        return ""
    shapes = [*_shapes(schema)]
    kinds = [shape.get("type") for shape in shapes]
    is_number = "integer" in kinds or "number" in kinds
    if is_number and re.fullmatch("""["'][0-9.]+["']""", entry.written):
        return f"write {entry.text} without quotes"
    if "boolean" in kinds and entry.text.lower() in _TRUTH:
        return f"write {_TRUTH[entry.text.lower()]}: YAML 1.2 has no other truth values"
    choices = [word for shape in shapes for word in shape.get("enum", ())]
    close = difflib.get_close_matches(entry.text, choices, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _shapes(schema: Schema) -> Iterator[Schema]:
    """A schema and all that it offers a choice of."""
    yield schema
    for one in schema.get("anyOf", ()):
        yield from _shapes(one)


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
    close = difflib.get_close_matches(name.replace("-", "_"), list(everywhere), n=1, cutoff=0.7)
    if close:
        return f"unknown key; did you mean {everywhere[close[0]]}?"
    return f"unknown key; accepted: {', '.join(keys)}"


def _leaves(node: Schema, root: Schema, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each key by its own name, and as torchrun joins it (``rdzv_backend``), to its path."""
    for key, child in node.get("properties", {}).items():
        path = f"{prefix}{key}"
        yield from _leaves(resolve(child, root), root, f"{path}.")
        yield path.replace(".", "_"), path
        yield key, path


def is_secret(path: KeyPath) -> bool:
    """Whether a value is or holds what may be a credential, which no message may show."""
    return path[:1] == ("env",) and (len(path) == 1 or bool(_SECRET_NAME.search(str(path[1]))))


def _found(one: Any, path: KeyPath, source: YamlSource) -> str:
    """What was refused, as written, where that is one line; never what may be a credential."""
    value = one["input"]
    if one["loc"][-1] == _OF_THE_KEY:
        return str(value)
    if path in (("env",), ("secrets",)):
        return _kind(value)
    if is_secret(path):
        return "a value (hidden)"
    if isinstance(value, dict | list | tuple):
        return _kind(value)
    entry = source.entries.get(path)
    if entry is not None and entry.text is not None:
        return entry.written or "nothing"
    return str(value) if value is not None else "nothing"


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else "a single value"
