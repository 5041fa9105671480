"""The messages about a wrong job file: place, key, what is accepted, the fix, the key most likely
meant; and which values may be credentials, which no message shows.

The words for what is accepted come from the JSON Schema, so that messages, editors and
docs/job-file.md say the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from launcher.contract.errors import closest
from launcher.job.conflicts import Conflict
from launcher.job.schema import (
    Schema,
    choices,
    describe,
    field_at,
    job_schema,
    render_flow,
    resolve,
    schema_at,
)
from launcher.job.values import NotAcceptedError
from launcher.yamlfile.problem import KeyPath, Problem, render_key, render_value
from launcher.yamlfile.source import YamlSource

_SECRET_NAME = re.compile(r"SECRET|TOKEN(?!IZERS)|PASSW|PWD|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
_OF_THE_KEY = "[key]"
"""pydantic's mark for a refused key of a mapping, as opposed to its value."""

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
    "backend": "rdzv.backend",
    "checkpoints": "checkpoint_dir",
}
"""Names from torchrun, compose files and Kubernetes that are spelled too differently to guess."""


def find_problems(
    error: ValidationError | None, conflicts: tuple[Conflict, ...], source: YamlSource
) -> Iterator[Problem]:
    """The problems that pydantic found and the conflicts between keys, each with its place."""
    for conflict in conflicts:
        what = f"found {render_value(str(conflict.given))}; accepted: {conflict.accepted}"
        yield source.problem(conflict.path, what, conflict.fix)
    for refusal in error.errors(include_url=False) if error is not None else ():
        path = tuple(part for part in refusal["loc"] if part != _OF_THE_KEY)
        yield source.problem(path, *_explain(refusal, path, source))


def _explain(refusal: Any, path: KeyPath, source: YamlSource) -> tuple[str, str]:
    """What one of pydantic's errors says is wrong, and the fix."""
    if refusal["type"] == "extra_forbidden":
        return _explain_unknown(path)
    schema = schema_at(path)
    if refusal["type"] == "missing":
        return f"missing; accepted: {describe(schema)}", _example(path, source)
    cause = refusal.get("ctx", {}).get("error")
    if not isinstance(cause, NotAcceptedError):
        cause = NotAcceptedError()
    given = render_value(cause.given or _render_given(refusal, path, source))
    is_other = refusal["type"] == "string_type" and refusal["input"] is not None
    quoted = _quoted(path, source, schema) if is_other else ""
    fix = cause.fix or quoted or _meant(path, source, schema) or _example(path, source)
    return f"found {given}; accepted: {cause.accepted or describe(schema)}", fix


def _quoted(path: KeyPath, source: YamlSource, schema: Schema) -> str:
    """The fix for a number or truth value where text is accepted; empty for anything else."""
    entry = source.entries.get(path)
    if entry is None or not entry.text:
        return ""
    texts = [shape for shape in choices(schema) if shape.get("type") == "string"]
    if not any(re.search(shape.get("pattern", ""), entry.text) for shape in texts):
        return ""
    if entry.where.startswith("--set "):  # where a shell would take the quotes away
        return f"""--set '{render_key(path)}="{entry.text}"'"""
    return f'write "{entry.text}", in quotes'


def _meant(path: KeyPath, source: YamlSource, schema: Schema) -> str:
    """The fix that names the value most likely meant; empty if no value is likely."""
    entry = source.entries.get(path)
    if entry is None or entry.text is None:
        return ""
    text, shapes = entry.text, [*choices(schema)]
    kinds = [shape.get("type") for shape in shapes]
    is_number = "integer" in kinds or "number" in kinds
    if is_number and re.fullmatch("""["'][0-9.]+["']""", entry.written):
        return f"write {text} without quotes"
    if is_number and (seconds := re.fullmatch(r"([0-9]+) *s(ec|econds?)?", text)):
        return f"write {seconds[1]}: the unit is seconds"
    if "boolean" in kinds and text.lower() in _TRUTH:
        return f"write {_TRUTH[text.lower()]}: YAML 1.2 has no other truth values"
    words = [word for shape in shapes for word in shape.get("enum", ())]
    close = closest(text, words)
    return f"did you mean {close}?" if close else ""


def _example(path: KeyPath, source: YamlSource) -> str:
    """The fix that shows a value that the key, or the nearest one around it, accepts."""
    for size in range(len(path), 0, -1):
        if examples := field_at(path[:size]).get("examples"):
            return f"for example {_as_given(path[:size], examples[0], source)}"
    for key, field in schema_at(path).get("properties", {}).items():
        if examples := field.get("examples"):
            return f"for example {render_key(path)}: {{{key}: {render_flow(examples[0])}}}"
    return "leave the key out, for its default"


def _as_given(path: KeyPath, value: Any, source: YamlSource) -> str:
    """A key with a value: as the option takes it that gave the key, else as in a job file."""
    entry = source.entries.get(path)
    option = entry.where.partition(" ")[0] if entry is not None and not entry.line else ""
    if option == "--set":
        return shlex.join([option, f"{render_key(path)}={render_flow(value)}"])
    if option == f"--{str(path[-1]).replace('_', '-')}":
        return shlex.join([option, str(value)])
    return f"{render_key(path)}: {render_flow(value)}"


def _explain_unknown(path: KeyPath) -> tuple[str, str]:
    keys = list(schema_at(path[:-1]).get("properties", {}))
    name, inside = str(path[-1]), render_key(path[:-1])
    everywhere = dict(_leaves(job_schema()))
    spelled = name.replace("-", "_")
    if guess := closest(spelled, keys):
        meant = f"{inside}.{guess}" if inside else guess
    else:
        meant = _FAMILIAR.get(name.lower()) or everywhere.get(name) or ""
        meant = meant or everywhere.get(closest(spelled, everywhere, cutoff=0.7), "")
    if meant:
        return "unknown key", f"did you mean {meant}?"
    return f"unknown key; accepted: {', '.join(keys)}", "remove it, or write one of these"


def _leaves(node: Schema, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Pairs of a key's name and its path; also with torchrun's spelling of it, ``rdzv_backend``."""
    for key, child in node.get("properties", {}).items():
        path = f"{prefix}{key}"
        yield from _leaves(resolve(child), f"{path}.")
        yield path.replace(".", "_"), path
        yield key, path


def is_secret(path: KeyPath) -> bool:
    """Whether a value may be or hold a credential, which no message may show."""
    return path[:1] == ("env",) and (len(path) == 1 or bool(_SECRET_NAME.search(str(path[1]))))


def _render_given(refusal: Any, path: KeyPath, source: YamlSource) -> str:
    """The refused value as it was written, if that is one line; never a possible credential."""
    value = refusal["input"]
    if refusal["loc"][-1] == _OF_THE_KEY:
        return str(value)
    if path not in (("env",), ("secrets",)) and is_secret(path):
        return "a value (hidden)"
    if isinstance(value, dict | list | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    if path in (("env",), ("secrets",)):
        return "nothing" if value is None else "a single value"
    entry = source.entries.get(path)
    if entry is not None and entry.text is not None:
        return entry.written or "nothing"
    return str(value) if value is not None else "nothing"
