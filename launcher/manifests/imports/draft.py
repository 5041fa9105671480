"""A job file in the making: its keys, what has no place in it, and the text that ``import`` writes.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.job.file import parse_job
from launcher.job.script import as_name, name_of
from launcher.yamlfile.problem import FileError

FIRST = ("name", "image", "command", "nnodes", "nproc_per_node")
"""The keys that a person looks for, at the top; the others follow in the order of their import."""


@dataclass(kw_only=True)
class Draft:
    """What was read so far.

    ``keys`` are a job file's, each path with dots (``resources.shm``). ``left`` are words without
    a place in it, each with the reason.
    """

    source: str
    keys: dict[str, Any] = field(default_factory=dict)
    left: list[tuple[str, str]] = field(default_factory=list)

    def put(self, key: str, value: Any) -> None:
        """Sets a key; of two values the first counts, as the innermost program is read first."""
        if value not in (None, "", (), [], {}):
            value = int(value) if isinstance(value, float) and value.is_integer() else value
            self.keys.setdefault(key, value)

    def add(self, key: str, item: Any) -> None:
        """One more item of a list."""
        self.keys.setdefault(key, [])
        if item not in self.keys[key]:
            self.keys[key].append(item)

    def set_env(self, name: str, value: str) -> None:
        self.keys.setdefault(f"env.{name}", value)

    def leave(self, word: str, why: str) -> None:
        """Names a word that is not taken over."""
        if (word, why) not in self.left:
            self.left.append((word, why))


def render_draft(draft: Draft, targets: Collection[str] = (), name: str = "job.yaml") -> str:
    """The text of the job file ``name``, to be run on the one of ``targets`` whose section it has.

    Raises ``InputError`` where nothing says what to run.
    """
    if not draft.keys.get("command"):
        what = f"{draft.source}: it names no script"
        raise InputError(what, "add it, with its arguments: -- train.py --lr 0.1")
    given = draft.keys.get("name")
    draft.keys["name"] = as_name(str(given)) if given else name_of(tuple(draft.keys["command"]))
    if "hosts.inventory" in draft.keys and "image" not in draft.keys:
        draft.put("hosts.runtime", "python")
    while True:
        text = "\n".join(_dump(draft))
        try:
            parse_job(text, draft.source)
        except FileError as error:
            if not _drop(draft, error):
                raise
        else:
            return "\n".join((*_header(draft, targets, name), text, ""))


def _drop(draft: Draft, error: FileError) -> bool:
    """Leaves out the keys that a job file does not accept, and notes why; False for none."""
    before = len(draft.keys)
    for problem in error.problems:
        path = ".".join(map(str, problem.path))
        for key in [k for k in draft.keys if f"{path}.".startswith(f"{k}.") and k != "command"]:
            del draft.keys[key]
            draft.leave(path, f"{problem.what}; {problem.fix}" if problem.fix else problem.what)
    return len(draft.keys) < before


def _header(draft: Draft, targets: Collection[str], name: str) -> Iterable[str]:
    sections = [key.partition(".")[0] for key in draft.keys]
    on = [("--on", section) for section in sections if section in targets][:1]
    run = typed.command("run", name, *(on[0] if on else ()))
    yield f"# From {draft.source}. Run it: {run}"
    if draft.left:
        yield "#"
        yield "# Not taken over:"
    for word, why in draft.left:
        shown = word if word.isprintable() else repr(word)
        yield f"#   {shown}: {why}"
    yield ""


def _dump(draft: Draft) -> Iterable[str]:
    """Lines of YAML, a block for each key of the top."""
    nested: dict[str, Any] = {}
    for path, value in draft.keys.items():
        *parents, last = path.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    order = [*(key for key in FIRST if key in nested), *(key for key in nested if key not in FIRST)]
    for key in order:
        style = None if key == "command" else False
        block = {key: nested[key]}
        yield yaml.safe_dump(
            block, sort_keys=False, allow_unicode=True, width=100, default_flow_style=style
        ).rstrip("\n")
