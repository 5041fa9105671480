"""Reads a job file, and over it ``--set``, ``--env`` and other options, into a JobSpec, or finds
all that is wrong. A credential of the shell becomes a secret.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.contract.errors import InputError
from launcher.job.conflicts import find_conflicts
from launcher.job.spec import JobSpec
from launcher.yamlfile.problem import FileError, KeyPath, Problem, render_value
from launcher.yamlfile.source import Entry, YamlSource, parse_fragment, parse_yaml, read_text

_TEXT_KEYS: tuple[tuple[str, ...], ...] = (
    *(("env", "*"), ("docker", "labels", "*"), ("command", "*")),
    ("kubernetes", "node_selector", "*"),
    *(("rdzv", "id"), ("torch_version",)),
)
"""Keys whose values stay as they are written: in a version or a variable ``1.10`` is not 1.1.

Overrides of these keys are not read as YAML either, so that ``--set env.PATTERN=*.py`` works."""

END = -1
"""In the path of an override: the place behind the last one of a list."""


@dataclass(frozen=True, kw_only=True)
class Override:
    """One value from the command line; ``option`` is what the user typed, as messages show it.

    ``is_text``: ``text`` is taken as it was typed, and not read as YAML.
    """

    option: str
    path: KeyPath
    text: str
    is_text: bool = False


def parse_override(setting: str) -> Override:
    """``rdzv.port=29400``, as ``--set`` takes it; a number is a place in a list."""
    key, equals, text = setting.partition("=")
    if not equals or not all(key.split(".")):
        raise InputError(f"--set {setting}: no key=value", "for example --set rdzv.port=29400")
    from launcher.job.problems import is_secret

    path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
    shown = "(hidden)" if is_secret(path) else render_value(text)
    return Override(option=f"--set {key}={shown}", path=path, text=text)


def env_override(given: str, environ: Mapping[str, str]) -> Override:
    """``NAME=VALUE``, or ``NAME`` for this shell's value, as ``--env`` takes it.

    The shell's value of what may be a credential becomes one of ``secrets``, which hold no values.
    """
    from launcher.job.problems import is_secret

    name, equals, text = given.partition("=")
    if not equals and name not in environ:
        raise InputError(f"--env {name}: not set in this shell", f"--env {name}=VALUE")
    if not equals and is_secret(("env", name)):
        return Override(option=f"--env {name}", path=("secrets", END), text=name, is_text=True)
    shown = f"--env {name}=(hidden)" if equals else f"--env {name}"
    text = text if equals else environ[name]
    return Override(option=shown, path=("env", name), text=text, is_text=True)


def option_override(option: str, text: str, section: str = "") -> Override:
    """The override by an option that has the name of its key, such as ``--nproc-per-node 2``.

    ``section`` is the section that has the key, empty for the top of the file.
    """
    key = option.removeprefix("--").replace("-", "_")
    return Override(
        option=f"{option} {shlex.quote(render_value(text))}",
        path=(section, key) if section else (key,),
        text=text,
        # These keys may be numbers; all other keys that have an option are text.
        is_text=key not in ("nnodes", "nproc_per_node", "devices", "max_restarts"),
    )


def read_job(path: Path | str, overrides: Sequence[Override] = ()) -> JobSpec:
    """Reads and checks a job file; raises ``InputError`` with every problem in it."""
    return parse_job(read_text(path), str(path), overrides)


def parse_job(text: str, file: str, overrides: Sequence[Override] = ()) -> JobSpec:
    """Checks the text of a job file; raises ``InputError`` with every problem in it."""
    problems: list[Problem] = []
    try:
        source = parse_yaml(text, file)
    except FileError as error:
        if error.source is None:
            raise
        source, problems = error.source, [*error.problems]
    return _build(source, problems, overrides)


def find_place(key: KeyPath, text: str, file: str, overrides: Sequence[Override] = ()) -> str:
    """Where a key's value comes from: ``file:line``, the option, or the file if it is not set."""
    source = parse_yaml(text, file)
    for override in overrides:
        source = _overridden(source, override)
    entry = source.entries.get(key)
    return file if entry is None else entry.where


def _build(source: YamlSource, problems: list[Problem], overrides: Sequence[Override]) -> JobSpec:
    for override in overrides:
        try:
            source = _overridden(source, override)
        except FileError as error:
            problems += [replace(p, path=override.path + p.path) for p in error.problems]
    return _check(_as_written(source.data, (), source), source, problems)


def check_job(text: str, where: str) -> JobSpec:
    """Checks a job that is in no file; raises ``InputError`` with every problem in it.

    ``where`` is shown in messages in place of a file.
    """
    return _build(parse_fragment(text, where), [], ())


def _check(data: Any, source: YamlSource, problems: list[Problem]) -> JobSpec:
    conflicts = find_conflicts(data)
    try:
        job, refused = JobSpec.model_validate(data), None
    except ValidationError as error:
        job, refused = None, error
    if refused is not None or conflicts:
        from launcher.job.problems import find_problems

        problems += find_problems(refused, conflicts, source)
    if job is None or problems:
        raise FileError(problems)
    return job


def _as_written(value: Any, path: KeyPath, source: YamlSource) -> Any:
    """The data, with numbers and truth values under ``_TEXT_KEYS`` as the text in the file."""
    if isinstance(value, dict):
        return {key: _as_written(item, (*path, key), source) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_written(item, (*path, index), source) for index, item in enumerate(value)]
    if value is not None and _matches(path, _TEXT_KEYS):
        return source.entries[path].text
    return value


def _matches(path: KeyPath, patterns: Sequence[tuple[str, ...]]) -> bool:
    return any(
        len(path) == len(pattern)
        and all(want in ("*", part) for want, part in zip(pattern, path, strict=True))
        for pattern in patterns
    )


def _overridden(source: YamlSource, override: Override) -> YamlSource:
    """The source with one value replaced; its entries name the option as their place."""
    given = _fragment(override)
    entries, data = dict(source.entries), source.data
    path: KeyPath = ()
    for part in override.path:
        if part == END:
            part = len(data) if isinstance(data, list) else 0
        if not isinstance(data, dict | list):
            entries[path] = given.entries[()]  # a section that only the option opens
        if data is None and part == 0:
            data = []
        path = (*path, part if isinstance(data, list) else str(part))
        data = _child(data, path[-1])
    size = len(path)
    entries = {place: entry for place, entry in entries.items() if place[:size] != path}
    entries |= {(*path, *below): entry for below, entry in given.entries.items()}
    return YamlSource(data=_put(source.data, path, given.data, override), entries=entries)


def _child(data: Any, part: str | int) -> Any:
    if isinstance(data, list):
        return data[part] if isinstance(part, int) and part < len(data) else None
    return data.get(part) if isinstance(data, dict) else None


def _fragment(override: Override) -> YamlSource:
    if not override.is_text and not _matches(override.path, _TEXT_KEYS):
        return parse_fragment(override.text, override.option)
    entry = Entry(where=override.option, line=0, text=override.text, written=override.text)
    return YamlSource(data=override.text, entries={(): entry})


def _put(data: Any, path: KeyPath, value: Any, override: Override) -> Any:
    """A copy of the data with the value at the path."""
    if not path:
        return value
    new = _put(_child(data, path[0]), path[1:], value, override)
    if data is None and path[0] == 0:
        data = []
    if not isinstance(data, list):
        return {**(data if isinstance(data, dict) else {}), path[0]: new}
    if not isinstance(path[0], int) or path[0] > len(data):
        what = f"found {path[0]} in a list of {len(data)}"
        fix = f"write a number of 0..{len(data)}; the last one appends"
        raise FileError([Problem(where=override.option, what=what, fix=fix)])
    return [*data[: path[0]], new, *data[path[0] + 1 :]]
