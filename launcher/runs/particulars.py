"""What a page tells of a run beside its report: settings, versions, stacks, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.code.record import DIFF_FILE
from launcher.contract import look, protocol
from launcher.contract.errors import InputError
from launcher.contract.records import parse_object, read_object
from launcher.contract.worker_end import WorkerEnd
from launcher.job.quantity import render_bytes
from launcher.runs.failure import read_failures
from launcher.runs.folder import SUBMITTED_FILE, RunFolder
from launcher.runs.ledger import agent_ledger, find_jump, read_ledger
from launcher.runs.report import Postmortem

MOST_FAILURES, MOST_NAMES = 64, 8
DIFF_BYTES = 256 << 10
STACK_CHARACTERS = 20_000


@dataclass(frozen=True, kw_only=True)
class Particulars:
    """``settings`` are those of the job by their paths; ``installed`` names versions and hardware.

    ``failures`` are those that the run ended with, then those that it survived, each with its stack
    or an empty text; ``missing`` says what of the run cannot be read.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    installed: Mapping[str, str] = field(default_factory=dict)
    diff: str = ""
    failures: Sequence[tuple[WorkerEnd, str]] = ()
    missing: Sequence[str] = ()


def read_particulars(run: RunFolder, told: Postmortem) -> Particulars:
    """Reads the run's folder, whatever is in it; raises nothing for what is not."""
    ends = list(told.failure.ranks if told.failure else ())
    known = {(end.node_index, end.rank, round(end.failed_at, 3)) for end in ends}
    try:
        survived = read_failures(run, run.read_plan())
        ends += [e for e in survived if (e.node_index, e.rank, round(e.failed_at, 3)) not in known]
    except InputError:
        pass  # The report says that there is no plan.
    job = read_object(run.path / protocol.JOB_FILE)
    return Particulars(
        settings=dict(_flatten(job)),
        installed=_read_installed(run),
        diff=_read_diff(run.path / DIFF_FILE),
        failures=[(end, _read_stack(end)) for end in ends[:MOST_FAILURES]],
        missing=(*told.missing, *_find_missing(run, told, job)),
    )


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value if isinstance(value, str) else json.dumps(value)


def _read_installed(run: RunFolder) -> dict[str, str]:
    """What the newest incarnation of each node told; where they differ, which nodes have what."""
    found: dict[str, dict[str, list[int]]] = {}
    for index, incarnation in dict(run.incarnations()).items():
        for event in read_ledger(agent_ledger(run, index, incarnation)):
            if event.name == "installed":
                told = (event.values.get(part) for part in ("versions", "hardware"))
                for name, value in (pair for part in told for pair in _flatten(part)):
                    found.setdefault(name, {}).setdefault(value, []).append(index)
    return {name: _tell(values) for name, values in found.items()}


def _tell(values: Mapping[str, Sequence[int]]) -> str:
    if len(values) == 1:
        return next(iter(values))
    return "; ".join(f"{value} on node {', '.join(map(str, on))}" for value, on in values.items())


def _read_diff(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(DIFF_BYTES)
            more = path.stat().st_size - len(data)
    except OSError:
        return ""
    rest = f"\n... {render_bytes(more)}B more in {path.name}" if more > 0 else ""
    return data.decode(errors="replace") + rest


def _read_stack(end: WorkerEnd) -> str:
    """Its traceback; where it left none, its threads in the newest look at this attempt."""
    folder = Path(end.log).parent
    message = read_object(folder / protocol.ERROR_FILE).get("message")
    more = message.get("extraInfo") if isinstance(message, dict) else None
    if isinstance(more, dict) and isinstance(text := more.get("py_callstack"), str):
        return text[-STACK_CHARACTERS:]
    if len(folder.parents) < 2:
        return ""
    node_dir = folder.parents[1]
    for one in reversed(look.read_looks(node_dir)):
        stacks = look.read_stacks(look.look_dir(node_dir, one.id), end.rank)
        if one.attempt == end.attempt and stacks and stacks.threads:
            calls = "\n".join(look.render_thread(stacks.threads[0]))
            return f"where it stood, newest call first:\n{calls}"[:STACK_CHARACTERS]
    return ""


def _find_missing(run: RunFolder, told: Postmortem, job: Mapping[str, Any]) -> Iterator[str]:
    if not job:
        yield f"{protocol.JOB_FILE}: the settings are not known"
    if not run.submitted_at():
        yield f"{SUBMITTED_FILE}: times count from the first event"
    silent = []
    for place in run.incarnations():
        path, name = agent_ledger(run, *place), "{}.{}".format(*place)
        if told.engine == "agent" and not path.exists():
            silent.append(name)
        elif jump_s := find_jump(read_ledger(path)):
            yield f"the clock of node {name} jumped by {jump_s:+.0f} s: its later times are off"
    if silent:
        more = f" and {len(silent) - MOST_NAMES} more" if len(silent) > MOST_NAMES else ""
        yield f"no ledger of node {', '.join(silent[:MOST_NAMES])}{more}: no events of theirs"
    torn = sum(map(_count_torn, (run.path / protocol.LEDGER_DIR).glob("*.jsonl")))
    if torn:
        yield f"{torn} lines of the ledger are torn"
    if told.reason is None and told.state not in ("running", "orphaned"):
        yield f"{protocol.OUTCOME_FILE}: how it ended is not known"


def _count_torn(path: Path) -> int:
    torn = 0
    try:
        for line in path.read_text(errors="replace").splitlines():
            try:
                parse_object(line)
            except ValueError:
                torn += 1
    except OSError:
        return 0
    return torn
