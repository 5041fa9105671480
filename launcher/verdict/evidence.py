"""Reads the evidence for a verdict: logs within a limit of bytes and seconds, workers' ends, looks,
and what the target reports. Also says what could not be read.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from launcher.agent.stopping import SILENT_S
from launcher.agent.worker_exit import read_end, read_traceback
from launcher.contract import protocol
from launcher.contract.causes import Cause, RunState
from launcher.contract.ending import show_line
from launcher.contract.errors import InputError
from launcher.contract.reports.look import CRASHED_STACKS
from launcher.job.values import render_bytes
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.torchrun import WorkerLog
from launcher.runs.failure import decide_report, read_report
from launcher.runs.folder import SUBMITTED_FILE, RunFolder, has_checkpoints
from launcher.runs.heals import HEALED, Heal, find_survived
from launcher.runs.ledger import (
    LAUNCHER_LEDGER,
    agent_ledger,
    find_jump,
    read_agents,
    read_heals,
    read_ledger,
    read_moments,
)
from launcher.runs.outcome import FailureReport, Outcome
from launcher.verdict.collectives import WAITS_S
from launcher.verdict.fixes import fit_fixes
from launcher.verdict.log_line import LogLine
from launcher.verdict.looks import (
    RankSnapshots,
    find_last_looks,
    moved_lately,
    read_frames,
    read_snapshots,
    tell_recorded,
    tell_standing,
)
from launcher.verdict.places import STAMP, name_nodes, node_in
from launcher.verdict.rules.standstill import STANDS_S, Standing, computes, own_place
from launcher.verdict.scan import SETTING, find_in_both, find_telling, read_both, strip_colours

MOST_BYTES = 48 << 20
"""Read from all logs together; each log has a share, taken from both ends."""
SHARE_BYTES = 5 << 20
LEAST_SHARE_BYTES = 64 << 10
END_BYTES = 1 << 18
LIMIT_S = 6.0
"""No further file is opened after this time."""
MOST_LINES = 6000
_OF_RANK = re.compile(r"\brank \d+: ")
"""Marks an agent's line that repeats what a worker's own files say."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_SUBMITTED = LogLine(file=SUBMITTED_FILE, text="submitted, and no node has started")
_WAITS = " waits in the queue:"
_OF_ALL = re.compile(r"job \d+ waits")
"""A line about a whole allocation; that of an element of a job array is about one node."""
MOST_MISSING = 3


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that a verdict rests on.

    ``state`` is the run's, empty for logs; ``lines`` are the telling ones, in the order of their
    files; ``missing`` says what could not be read.
    ``is_placed``: the nodes of ``failure`` are known, not guessed from ranks. ``only_node`` is the
    node of a run that has only one.
    """

    subject: str
    state: str = ""
    run_cause: Cause | None = None
    detail: str = ""
    failure: FailureReport | None = None
    lines: tuple[LogLine, ...] = ()
    standing: tuple[Standing, ...] = ()
    missing: tuple[str, ...] = ()
    is_placed: bool = True
    only_node: int | None = None
    stood: bool = False
    """Whether the ranks made no progress when they were asked to end. Then the stop is not the
    cause."""
    detail_node: int | None = None
    """The node that ``detail`` names."""
    heals: tuple[Heal, ...] = ()
    fixes: Mapping[Cause, str] = field(default_factory=dict)
    """Fixes by cause that replace the causes' own, because they fit where the workers ran."""


class LogReading:
    """Reads many logs within one budget of bytes and time, and notes what it could not read.

    ``tails`` are the ends of the texts, where torchrun's report stands.
    """

    def __init__(self, files: int) -> None:
        self._share = max(LEAST_SHARE_BYTES, min(SHARE_BYTES, MOST_BYTES // max(1, files)))
        self._until = time.monotonic() + LIMIT_S
        self._unread: list[str] = []
        self._late = 0
        self.lines: list[LogLine] = []
        self.tails: list[str] = []

    def read_file(self, path: Path, place: LogLine) -> None:
        """Adds the telling lines of a file; a file that cannot be read counts as missing."""
        if time.monotonic() > self._until:
            self._late += 1
            return
        try:
            if path.is_file():
                with path.open("rb") as file:
                    self.add(file, place)
        except OSError as error:
            self._unread.append(f"{place.file}: {error.strerror}")

    def add(self, file: BinaryIO, place: LogLine) -> None:
        """Adds the telling lines of an open file or pipe. Raises ``OSError``."""
        *both, passed_over = read_both(file, self._share)
        head, tail = map(strip_colours, both)
        log_lines = find_in_both(head, tail, place)
        self.lines += log_lines[: MOST_LINES - len(self.lines)]
        self.tails.append(STAMP.sub("", (tail or head)[-END_BYTES:].decode(errors="replace")))
        if passed_over:
            self._unread.append(f"{render_bytes(passed_over)}B in the middle of {place.file}")

    def missing(self) -> tuple[str, ...]:
        """What was not read, in words."""
        named = self._unread[:MOST_MISSING]
        more = len(self._unread) - len(named)
        late = f"{self._late} of the files (reading ends after {LIMIT_S:g} s)" if self._late else ""
        return tuple(filter(None, (*named, f"{more} more" if more else "", late)))


def read_run(
    run: RunFolder,
    outcome: Outcome | None = None,
    state: str = "",
    nodes: Mapping[int, str] = {},
    looks: Mapping[int, Path] | None = None,
) -> Evidence:
    """The evidence in a run's folder, even an incomplete one; raises nothing.

    ``outcome`` and ``state`` are the run's, and ``nodes`` is what its target says of nodes now.
    ``looks`` are folders of looks taken now, by node; by default the last looks are read.
    """
    missing: list[str] = []
    outcome = outcome or run.read_outcome()
    plan = _read_plan(run, missing)
    if outcome is None and (run.path / protocol.OUTCOME_FILE).exists():
        missing.append(f"{protocol.OUTCOME_FILE} cannot be read")
    failure = outcome.failure if outcome else None
    with contextlib.suppress(OSError, ValueError):
        failure = failure or (read_report(run, plan) if plan else _report_of_ends(run))
    newest, logs = dict(run.incarnations()), list(_newest(run.worker_logs()))
    consoles = [(n, path) for (n, i), path in run.consoles() if newest.get(n) == i]
    last = find_last_looks(run, newest.items()) if looks is None else looks
    snapshots, is_stop = _read_snapshots(run, last, consoles if looks is None else (), plan)
    hosts = _read_hosts(run, plan)
    reading = LogReading(2 * len(logs) + len(consoles) + 1)
    reading.lines += _tell_of_nodes(run, nodes, newest)
    waits_s = SILENT_S if is_stop else WAITS_S if looks is None else STANDS_S
    first = failure.first if failure else None
    reading.lines += tell_recorded(
        run, snapshots, logs, first, waits_s=waits_s, goes_on=not outcome
    )
    reading.lines += _tell_proxies(plan) if plan else ()
    for log in logs:
        _read_worker(reading, run, log, plan)
    state = outcome.state if outcome else state
    _read_others(reading, run, consoles, state, has_workers=bool(logs))
    if not outcome and not newest and run.submitted_at():
        reading.lines.append(_SUBMITTED)
    if not logs and not consoles:
        missing.append("no log of a worker or a node")
    detail = outcome.summarize(first) if outcome else ""
    *placed, detail_line = name_nodes(
        [*reading.lines, LogLine(file=protocol.OUTCOME_FILE, text=detail)], hosts
    )
    return Evidence(
        subject=run.run_id,
        state=state,
        run_cause=outcome.cause if outcome else _cause_so_far(run, newest),
        detail=detail,
        failure=failure,
        lines=tuple(placed),
        detail_node=detail_line.node,
        standing=tuple(tell_standing(run, snapshots)),
        stood=is_stop,
        fixes=_fit_fixes(plan) if plan else {},
        heals=outcome.heals if outcome else read_heals(run, plan) if plan else (),
        missing=(*missing, *reading.missing()),
        only_node=plan.nodes[0].node_index if plan and len(plan.nodes) == 1 else None,
    )


def _fit_fixes(plan: LaunchPlan) -> dict[Cause, str]:
    # Where the folder is not on this machine, the run may have left a checkpoint.
    return fit_fixes(plan, can_resume=has_checkpoints(plan.checkpoint_dir) is not False)


def _tell_proxies(plan: LaunchPlan) -> Iterator[LogLine]:
    for name in {name for node in plan.nodes for name, _ in node.env}:
        if name.lower() in _PROXIES:
            yield LogLine(file=SETTING, text=f"{name} is set")


def _read_snapshots(
    run: RunFolder,
    folders: Mapping[int, Path],
    consoles: Iterable[tuple[int, Path]],
    plan: LaunchPlan | None,
) -> tuple[RankSnapshots, bool]:
    """The snapshots of the ranks, and whether the ranks made no progress before a stop.

    Ranks that waited for a person at a debugger count as making progress.
    """
    snapshots = read_snapshots(folders, consoles)
    is_stop = any(look.why == "stop" for look in snapshots.looks.values())
    is_debugged = bool(plan and plan.agent and plan.agent.debug_rank is not None)
    moved = is_debugged or moved_lately(snapshots)
    if is_stop and (moved or any(map(computes, tell_standing(run, snapshots)))):
        return RankSnapshots(folders={}), False
    return snapshots, is_stop


_NO_MODULE = re.compile(r"No module named '(\w+)")
_NOT_STARTED = re.compile(r"finding module specification for '([\w.]+)'|No module named ([\w.]+)")
"""What ``python -m`` prints of the module that it was given."""


def _explain_import(line: LogLine, plan: LaunchPlan) -> LogLine:
    """The line of an import that failed, with what the folder of the code says about it."""
    command, root = plan.nodes[0].command, plan.code.root if plan.code else ""
    folder = Path(root, plan.code.inner) if plan.code else Path(plan.nodes[0].workdir or ".")
    if "attempted relative import with no" in line.text and command[0].endswith(".py"):
        script = (folder / command[0]).with_suffix("")
        package = script.parent
        while (package.parent / "__init__.py").exists():
            package = package.parent
        module = ".".join(script.relative_to(package.parent).parts)
        return replace(line, text=f"{line.text}; {module} is a file of a package")
    if given := _NOT_STARTED.search(line.text):
        if there := _find_in_place(folder, (given[1] or given[2]).split(".")):
            return replace(line, text=f"{line.text}; {there}")
    elif missing := _NO_MODULE.search(line.text):
        beside = (f"{missing[1]}/__init__.py", f"{missing[1]}.py")
        if module_path := next(
            (path for name in beside for path in sorted(folder.glob(f"*/{name}"))), None
        ):
            inside = module_path.relative_to(folder).parts[0]
            return replace(line, text=f"{line.text}; it lies in {inside}")
    return line


def _find_in_place(folder: Path, names: Sequence[str]) -> str:
    """What the folder of the code has in place of a module; empty if nothing of its names."""
    for number, name in enumerate(names):
        place = Path(*names[:number])
        if (folder / place / f"{name}.py").is_file():
            return "" if name == names[-1] else f"{place / name}.py is no package"
        if not (folder / place / name).is_dir():
            return f"{place} has no {name}" if number else ""
    return ""


def _cause_so_far(run: RunFolder, newest: Mapping[int, int]) -> Cause | None:
    """Without an outcome: whether somebody stopped the run, or took its nodes away."""
    if (run.path / protocol.STOP_RUN_FILE).exists():
        return Cause.STOP_REQUESTED
    outcomes = filter(None, (run.read_node_outcome(*node) for node in newest.items()))
    return next((outcome.cause for outcome in outcomes if outcome.cause is Cause.PREEMPTED), None)


def _read_hosts(run: RunFolder, plan: LaunchPlan | None) -> dict[str, int]:
    """Nodes by the names of hosts, containers and pods, as far as the folder has them."""
    hosts = {machine.name: node for node, machine in enumerate(plan.machines)} if plan else {}
    hosts |= {f"{run.run_id}-{n.node_index}": n.node_index for n in plan.nodes} if plan else {}
    for path in sorted(run.path.glob("*/*.started")):  # of a job that got several hosts at once
        with contextlib.suppress(OSError, UnicodeError):
            names = path.read_text().split()
            hosts |= {name: node for node, name in enumerate(names) if len(names) > 1}
    return hosts


def _read_plan(run: RunFolder, missing: list[str]) -> LaunchPlan | None:
    try:
        return run.read_plan()
    except InputError:
        there = (run.path / protocol.PLAN_FILE).exists()
        missing.append(f"{protocol.PLAN_FILE} {'cannot be read' if there else 'is not there'}")
        return None


def _report_of_ends(run: RunFolder) -> FailureReport:
    """As ``read_report``, but from the workers' folders alone, for a run without a plan."""
    logs = _newest(run.worker_logs())
    ends = ((log, read_end(run.path / log.folder / protocol.EXIT_FILE, run.path)) for log in logs)
    return decide_report([replace(end, node_index=log.node_index) for log, end in ends if end], ())


def _newest(logs: Sequence[WorkerLog]) -> Iterator[WorkerLog]:
    """The logs of each node's last attempt."""
    last: dict[int, tuple[int, int]] = {}
    for log in logs:
        place = (log.incarnation, log.attempt)
        last[log.node_index] = max(place, last.get(log.node_index, place))
    return (log for log in logs if last[log.node_index] == (log.incarnation, log.attempt))


def _inside(run: RunFolder, path: Path) -> str:
    return str(path.relative_to(run.path))


def _read_worker(
    reading: LogReading, run: RunFolder, log: WorkerLog, plan: LaunchPlan | None
) -> None:
    folder = run.path / log.folder
    nproc = plan.nodes[0].nproc_per_node if plan and plan.nodes else 1
    rank = log.rank_on(log.node_index, nproc)
    place = LogLine(node=log.node_index, rank=rank)
    before = len(reading.lines)
    reading.lines += read_error_file(folder / protocol.ERROR_FILE, place, run.path)
    for name in (CRASHED_STACKS, *reversed(log.streams)):
        reading.read_file(folder / name, replace(place, file=f"{log.folder}/{name}"))
    if plan:
        reading.lines[before:] = [_explain_import(x, plan) for x in reading.lines[before:]]
    if crashed_at := own_place(read_frames(folder)):
        framed = (replace(line, frame=line.frame or crashed_at) for line in reading.lines[before:])
        reading.lines[before:] = framed


def _read_others(
    reading: LogReading,
    run: RunFolder,
    consoles: Sequence[tuple[int, Path]],
    state: str,
    *,
    has_workers: bool,
) -> None:
    """The logs of agents, but for losses that the run survived, of the launcher and of the
    target."""
    has_failed = state not in (RunState.RUNNING, RunState.STOPPED)
    losses = find_survived(read_agents(run), has_failed=has_failed)
    survived = {f"[agent] {loss}" for loss in losses}
    for node, path in consoles:
        before = len(reading.lines)
        reading.read_file(path, LogLine(file=_inside(run, path), node=node))
        reading.lines[before:] = [
            line for line in reading.lines[before:] if line.text not in survived
        ]
        if has_workers:  # the console repeats their lines
            log_lines = reading.lines[before:]
            of_agent = [
                line for line in log_lines if line.rank is None and not _OF_RANK.search(line.text)
            ]
            reading.lines[before:] = of_agent
    for path in (run.path / protocol.LAUNCHER_LOG_FILE, *sorted(run.path.glob("*/*.log"))):
        # The target's own logs, such as a batch script's, lie in a folder of its name.
        place = LogLine(file=_inside(run, path), node=node_in(path.name))
        before = len(reading.lines)
        reading.read_file(path, place)
        lines = reading.lines[before:]
        reading.lines[before:] = [x for x in lines if not x.text.startswith(f"launcher: {HEALED}")]


def read_error_file(path: Path, place: LogLine, root: Path) -> list[LogLine]:
    """The lines of the exception that a worker left, with the time at which it was raised.

    The fix that an exception names itself stands in its line.
    """
    text, raised_at = read_traceback(path)
    text = text.replace("\n  fix: ", "; fix: ")
    place = replace(place, file=str(path.relative_to(root)), at=raised_at)
    log_lines = list(find_telling(text.encode(errors="replace").split(b"\n"), place))
    return [replace(line, at=raised_at) for line in log_lines if line.raised]


def _tell_of_nodes(
    run: RunFolder, nodes: Mapping[int, str], newest: Mapping[int, int]
) -> Iterable[LogLine]:
    """What the target and the cluster said of the nodes, clock jumps and installed versions."""
    name = f"{protocol.LEDGER_DIR}/{LAUNCHER_LEDGER}"
    began = {n: read_ledger(agent_ledger(run, n, i))[:1] for n, i in newest.items()}
    moments = read_moments(run)
    texts = [show_line(str(event.values.get("text", ""))) for event in moments]
    killed = Counter(
        event.node_index
        for event, text in zip(moments, texts, strict=True)
        if " ended: exit code 137" in text
    )
    for number, times in killed.items():
        if times > 2:
            again = f"its container has ended {times} times with exit code 137"
            yield LogLine(file=name, text=again, node=number, joined=True)
    # Slurm changes the reason for a wait from time to time: only the last one holds.
    newest_wait = {text.partition(":")[0]: at for at, text in enumerate(texts) if _WAITS in text}
    for at, (event, text) in enumerate(zip(moments, texts, strict=True)):
        # What a node waited for before it started is over.
        is_over = any(event.at < first.at for first in began.get(event.node_index, ()))
        is_over = is_over or newest_wait.get(text.partition(":")[0], at) != at
        if newest.get(event.node_index, event.incarnation) == event.incarnation and not is_over:
            node = None if _OF_ALL.match(text) else event.node_index
            yield LogLine(file=name, text=text, node=node, at=event.at)
    for node, words in nodes.items():
        yield LogLine(file="the target", text=show_line(words), node=node)
    for place in run.incarnations():
        path = agent_ledger(run, *place)
        events = read_ledger(path)
        line = LogLine(file=_inside(run, path), node=place[0])
        if jump_s := find_jump(events):
            yield replace(line, text=f"the clock jumped by {jump_s:+.0f} s")
        for event in events:
            if event.name == "installed" and place in newest.items():
                versions = event.values.get("versions")
                for what, which in versions.items() if isinstance(versions, dict) else ():
                    yield replace(line, text=f"{what} version {which}", joined=True)
