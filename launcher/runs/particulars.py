"""What a page shows of a run beside its report: settings, versions, stacks, what is missing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.code.record import DIFF_FILE
from launcher.contract import protocol
from launcher.contract.ending import WorkerEnd
from launcher.contract.errors import InputError
from launcher.contract.records import parse_object, read_object
from launcher.contract.reports import look
from launcher.runs.failure import read_failures
from launcher.runs.folder import SUBMITTED_FILE, RunFolder
from launcher.runs.ledger import agent_ledger, find_jump, read_ledger
from launcher.runs.report import Postmortem

MOST_FAILURES = 64
DIFF_CHARACTERS = 256 << 10
STACK_CHARACTERS = 20_000


@dataclass(frozen=True, kw_only=True)
class Particulars:
    """A run's report, and what else its page shows.

    ``verdict`` is text, empty for none; ``lives`` a picture of its nodes, or why there is none.
    ``settings`` are those of the job by their paths; ``facts`` name its code, versions and
    hardware. ``failures`` are those that the run ended with, then those that it survived, each with
    its stack or an empty text; ``missing`` says what of the run cannot be read.
    """

    report: Postmortem
    verdict: str = ""
    lives: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    diff: str = ""
    failures: Sequence[tuple[WorkerEnd, str]] = ()
    missing: Sequence[str] = ()


def read_particulars(run: RunFolder, report: Postmortem, verdict: str, lives: str) -> Particulars:
    """Reads the run's folder, whatever it holds; raises nothing if something is missing."""
    ends = list(report.failure.ranks if report.failure else ())
    with contextlib.suppress(InputError):  # The report says that there is no plan.
        ends += read_failures(run, run.read_plan())
    failures: dict[object, WorkerEnd] = {}
    for end in ends:
        failures.setdefault((end.node_index, end.rank, round(end.failed_at, 3)), end)
    job = read_object(run.path / protocol.JOB_FILE)
    return Particulars(
        report=report,
        verdict=verdict,
        lives=lives,
        settings=dict(_flatten(job)),
        facts={**_tell_code(report), **_read_installed(run)},
        diff=_read_diff(run.path / DIFF_FILE),
        failures=[(end, _read_stack(end)) for end in [*failures.values()][:MOST_FAILURES]],
        missing=(*report.missing, *_find_missing(run, report, job)),
    )


def _tell_code(report: Postmortem) -> dict[str, str]:
    facts, code = {"job": report.job, "target": report.target, "engine": report.engine}, report.code
    if code:
        facts["commit"] = (code.commit or "none") + " with changes" * code.is_dirty
        facts |= {"hash of all code": code.hash, "folder of the code": code.root}
    return facts


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value if isinstance(value, str) else json.dumps(value)


def _read_installed(run: RunFolder) -> dict[str, str]:
    """What the newest incarnation of each node reported; if they differ, which nodes have what."""
    installed: dict[str, dict[str, list[str]]] = {}
    for index, incarnation in dict(run.incarnations()).items():
        for event in read_ledger(agent_ledger(run, index, incarnation)):
            for part in ("versions", "hardware") if event.name == "installed" else ():
                for name, value in _flatten(event.values.get(part)):
                    installed.setdefault(name, {}).setdefault(value, []).append(str(index))
    return {
        name: "; ".join(
            value + (f" on node {', '.join(nodes)}" if len(values) > 1 else "")
            for value, nodes in values.items()
        )
        for name, values in installed.items()
    }


def _read_diff(path: Path) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return text if len(text) <= DIFF_CHARACTERS else f"{text[:DIFF_CHARACTERS]}\n... in {path.name}"


def _read_stack(end: WorkerEnd) -> str:
    """Its traceback; if it left none, its main thread in the newest look at this attempt."""
    folder = Path(end.log).parent
    with contextlib.suppress(KeyError, TypeError):
        message = read_object(folder / protocol.ERROR_FILE)["message"]
        return str(message["extraInfo"]["py_callstack"])[-STACK_CHARACTERS:]
    if len(folder.parents) < 2:
        return ""
    node_dir = folder.parents[1]
    for past in reversed(look.read_looks(node_dir)):
        stacks = look.read_stacks(look.look_dir(node_dir, past.id), end.rank)
        if past.attempt == end.attempt and stacks and stacks.threads:
            calls = "\n".join(look.render_thread(stacks.threads[0]))
            return f"where it stood, newest call first:\n{calls}"[:STACK_CHARACTERS]
    return ""


def _find_missing(run: RunFolder, report: Postmortem, job: Mapping[str, Any]) -> Iterator[str]:
    if not job:
        yield f"{protocol.JOB_FILE}: the settings are not known"
    if not run.submitted_at():
        yield f"{SUBMITTED_FILE}: times count from the first event"
    silent = []
    for place in run.incarnations():
        path, name = agent_ledger(run, *place), "{}.{}".format(*place)
        if report.engine == "agent" and not path.exists():
            silent.append(name)
        elif jump_s := find_jump(read_ledger(path)):
            yield f"the clock of node {name} jumped by {jump_s:+.0f} s: its later times are off"
    if silent:
        count = f"{len(silent)}, such as {silent[0]}"
        yield f"node incarnations without a ledger: {count}; their events are missing"
    lines = (
        line
        for path in (run.path / protocol.LEDGER_DIR).glob("*.jsonl")
        for line in path.read_text(errors="replace").splitlines()
    )
    if torn := sum(not _is_whole(line) for line in lines):
        yield f"{torn} lines of the ledger are torn"
    if report.cause is None and report.state not in ("running", "orphaned", "suspended"):
        yield f"{protocol.OUTCOME_FILE}: how it ended is not known"


def _is_whole(line: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(parse_object(line))
    return False
