"""The verdict: what happened first, where, why, how sure that is, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from launcher.contract import protocol, typed
from launcher.contract.causes import Cause, RunState
from launcher.contract.ending import WorkerEnd, is_own_failure, show_line
from launcher.runs.heals import JOINED
from launcher.runs.outcome import FailureReport
from launcher.verdict.evidence import Evidence
from launcher.verdict.fixes import fill_fix
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.all import judge_end, judge_lines, judge_run_cause
from launcher.verdict.rules.rule import FOLLOWS, OWN_FIX, Meaning, Weight
from launcher.verdict.rules.standstill import judge_standing
from launcher.verdict.stacks import name_ranks

_OF_OTHERS = (
    *(Cause.MISSING_COLLECTIVE, Cause.NETWORK_CUT, Cause.NCCL_ERROR),
    Cause.MASTER_UNREACHABLE,
)
"""Causes by which a worker blames others."""
_OF_HANG = (
    *(Cause.DEADLOCK, Cause.ENDLESS_LOOP, Cause.DATA_STALL, Cause.GPU_FAULT),
    *(Cause.MISSING_COLLECTIVE, Cause.MISMATCHED_COLLECTIVE, Cause.SHAPE_MISMATCH_IN_COLLECTIVE),
)
_GOES_ON = ("running", "held", "orphaned", "suspended")
_OF_PLACE = (Cause.NO_ROOM, Cause.IMAGE_PULL, Cause.CONTAINER_START)
OF_STOP = (Cause.STOPPED_BY_USER, Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.KILLED)
"""Causes that a stop of ranks that stand still looks like, but is not."""
_LIKE_A_STOP = frozenset(OF_STOP) - {Cause.STOPPED_BY_USER}
"""Those of them that a stop by a person looks like."""
MOST_SHOWN = 12
MOST_HEALED = 3
LINE_CHARACTERS = 160


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One judgement of a run or of logs.

    ``certainty`` is certain, likely or unclear; empty where nothing has failed. ``node`` and
    ``rank`` are None where they are not known; ``place`` is a line of the user's code.
    """

    subject: str
    state: str
    run_cause: Cause | None
    """Why the run ended, or is about to end, by its record; None if the record does not say."""
    cause: Cause
    certainty: str
    what: str
    fix: str
    node: int | None = None
    rank: int | None = None
    host: str = ""
    place: str = ""
    fell: tuple[int, ...] = ()
    evidence: tuple[LogLine, ...] = ()
    missing: tuple[str, ...] = ()
    healed: tuple[str, ...] = ()
    """The losses that a run without a failure went on from, with the nodes that were lost."""

    @property
    def where(self) -> str:
        """Rank, node, host and line in words; empty where none of them is known."""
        node = None if self.node is None else f"node {self.node}"
        rank = None if self.rank is None else f"rank {self.rank}"
        who = " on ".join(filter(None, (rank, node))) + (f" ({self.host})" if self.host else "")
        return ", ".join(filter(None, (who, self.place)))

    def to_jsonable(self) -> dict[str, object]:
        """Plain data for ``--json``."""
        run_cause = self.run_cause or self.cause.of
        return {**asdict(self), "run_cause": run_cause, "runbook": self.cause.section}


def decide_verdict(evidence: Evidence) -> Verdict:
    """Decides from the evidence which failure came first."""
    failure, goes_on = evidence.failure, evidence.state in _GOES_ON
    first = failure.first if failure else None
    stands = list(judge_standing(evidence.standing, stood=evidence.stood))
    meanings = [*stands, *judge_lines(evidence.lines)]
    begun_by = first
    if first:
        end = judge_end(first)
        if first.cause is Cause.HANG or first.is_collateral or end.cause in _OF_OTHERS:
            begun_by = None  # This worker only followed another one.
        line = end.line if evidence.is_placed else replace(end.line, node=None)
        meanings.append(replace(end, line=line))
    meanings += judge_run_cause(evidence.run_cause, evidence.detail, evidence.detail_node)
    if evidence.stood and any(m.cause in _OF_HANG and m.weight >= Weight.LIKELY for m in meanings):
        meanings = [m for m in meanings if m.cause not in OF_STOP]
        # What a thread raised explains that its rank's main thread waits for it.
        waits = {m.rank for m in meanings if m.cause is Cause.DEADLOCK}
        threads = [m for m in meanings if m.line.is_side and m.line.rank in waits]
        meanings += [replace(m, weight=Weight.SURE) for m in threads]
    if first and ": " in first.exception and is_own_failure(first.exception):
        # A node that found no place did not keep this worker from beginning.
        others = (None, first.node_index)
        meanings = [m for m in meanings if m.cause not in _OF_PLACE or m.line.node in others]
    if evidence.run_cause is Cause.INTERRUPTED:  # by a person: other ends only look like a stop
        meanings = [m for m in meanings if m.cause not in _LIKE_A_STOP]
    if evidence.state == RunState.SUCCEEDED.value:
        meanings = []
    if goes_on and first is None:
        meanings = _of_this_moment(meanings, stands)
    ordered = _order(meanings, begun_by)
    if not ordered:
        return _decide_nothing(evidence, first, goes_on=goes_on)
    best = ordered[0]
    line = _with_frame(best, ordered)
    rank, node = _place(best, line, evidence, ordered)
    return Verdict(
        subject=evidence.subject,
        state=evidence.state,
        run_cause=evidence.run_cause,
        cause=best.cause,
        certainty=_judge_certainty(best, node, ordered, first),
        what=_describe(best, line, rank),
        fix=fill_fix(
            best.fix or evidence.fixes.get(best.cause, best.cause.fix),
            line.text,
            evidence.detail,
            PACKAGE=best.package,
            RUN=evidence.subject if evidence.state else "",
        ),
        node=node,
        rank=rank,
        host=first.host if first and first.node_index == node and first.host else line.pod,
        place=line.frame if line.rank in (rank, None) and best.fix != OWN_FIX else "",
        fell=() if _is_asked(best) else _fell(failure, rank, line.text),
        evidence=tuple({(m.line.rank, m.line.text): m.line for m in reversed(ordered)}.values())[
            : -MOST_SHOWN - 1 : -1
        ],
        missing=evidence.missing,
    )


def _of_this_moment(meanings: Sequence[Meaning], stands: Sequence[Meaning]) -> list[Meaning]:
    """The meanings that still hold for a run that goes on: it may have survived what its logs say.

    The recorders describe the present, and so does the stack of a rank that the others wait for.
    """
    late = {m.rank for m in meanings if m.line.joined and m.cause is Cause.MISSING_COLLECTIVE}
    why_late = [m for m in stands if m.rank in late and m.cause is not Cause.ENDLESS_LOOP]
    return [m for m in meanings if m.weight >= Weight.SURE or m.line.joined or m in why_late]


def _place(
    best: Meaning, line: LogLine, evidence: Evidence, ordered: Sequence[Meaning]
) -> tuple[int | None, int | None]:
    """The rank and the node at fault, as far as they are known; none where a person asked."""
    if _is_asked(best):
        return None, None
    worker_ends = evidence.failure.ranks if evidence.failure else ()
    rank = line.rank if best.rank is None else best.rank
    of_other = best.cause is Cause.EXITED_EARLY
    is_its = (
        len(worker_ends) == 1 and line.node is None and best.weight < Weight.ROOT and not of_other
    )
    if rank is None and worker_ends and (is_its or line.text == worker_ends[0].exception):
        rank = worker_ends[0].rank
    waits = best.cause is Cause.MISSING_COLLECTIVE or "clients joined" in line.text
    if waits and best.rank is None:
        # The ranks that came have given up; the rank that had to be ended did not come.
        silent = [
            end.rank
            for end in worker_ends
            if end.cause is Cause.TERMINATED and ": " not in end.exception
        ]
        rank = silent[0] if len(silent) == 1 else rank
    if rank == line.rank and best.rank is None and line.node is not None:
        return rank, line.node
    # The node of that rank's end; without a rank, the one node of all ends.
    nodes = {end.node_index for end in worker_ends if rank in (end.rank, None)}
    only_node = nodes.pop() if len(nodes) == 1 else -1
    node = line.node if only_node < 0 else only_node
    if node is None and rank is None:  # Take the node where the cause ended a process.
        deadly = (best.cause, Cause.KILLED)
        ended = {m.line.node for m in ordered if m.cause in deadly} - {None}
        node = ended.pop() if len(ended) == 1 else None
    is_away = best.cause is Cause.MASTER_UNREACHABLE and not evidence.is_placed
    if node is None:  # Every launcher puts rank 0 on node 0.
        node = 0 if rank == 0 else None if is_away else evidence.only_node
    return rank, node


def _order(meanings: Iterable[Meaning], first: WorkerEnd | None) -> list[Meaning]:
    """The heaviest first; among equals the first failed worker's, then in the order of time."""
    listed = list(meanings)
    timed = all(meaning.line.at for meaning in listed)

    def key(meaning: Meaning) -> tuple[float, ...]:
        is_own = first is None or meaning.line.rank == first.rank
        # Other ranks' lines come last: the first failure came before them. Only ROOT is exempt.
        is_after = not is_own and meaning.line.rank is not None and meaning.weight < Weight.ROOT
        says_little = FOLLOWS.index(meaning.cause) if meaning.cause in FOLLOWS else -1
        nowhere = meaning.weight is Weight.ROOT and meaning.line.node is None
        at = meaning.line.at if timed else 0.0
        return (is_after, -meaning.weight, says_little, not is_own, nowhere, at)

    return sorted(listed, key=key)


def _with_frame(best: Meaning, meanings: Sequence[Meaning]) -> LogLine:
    """The finding's line, with the place in the code from another line of the same rank or text."""
    line, framed = best.line, [x.line for x in meanings if x.line.frame and not x.line.is_side]
    of_rank = (x for x in framed if x.raised and x.rank == line.rank)
    same = (x for x in framed if x.text == line.text)
    return replace(line, frame=line.frame or next((x.frame for x in (*of_rank, *same)), ""))


def _judge_certainty(
    best: Meaning, node: int | None, meanings: Sequence[Meaning], first: WorkerEnd | None
) -> str:
    """``certain`` if one piece of direct evidence gives cause and node, and nothing disputes it.

    Direct evidence is what the process that failed first raised, the word of a kernel, engine or
    scheduler, and what the recorders of all ranks say together; its node comes from its own file or
    prefix, or from the run's plan. What is inferred from the order of times, a name in a line, or
    another failure is ``likely`` at most.
    """
    if best.weight < Weight.LIKELY:
        return "unclear"
    same = [meaning for meaning in meanings if meaning.cause is best.cause]
    is_direct = any(
        _is_direct(meaning, first) and node in (None, meaning.line.node) for meaning in same
    )
    is_own = best.line.is_own if best.cause is Cause.SCRIPT_ERROR else _is_asked(best)
    if not is_direct or best.also or (best.cause in FOLLOWS and not is_own):
        return "likely"
    heaviest = {meaning.line.node for meaning in same if meaning.weight is best.weight} - {None}
    rivals = (
        meaning.weight >= (best.weight if meaning.cause in FOLLOWS else Weight.LIKELY)
        for meaning in meanings
        if meaning.cause is not best.cause
    )
    return "likely" if len(heaviest) > 1 or any(rivals) else "certain"


def _is_asked(best: Meaning) -> bool:
    """Whether the run's own record says that a person asked for the end."""
    return best.cause is Cause.STOPPED_BY_USER and best.line.file == protocol.OUTCOME_FILE


def _is_direct(meaning: Meaning, first: WorkerEnd | None) -> bool:
    is_firsts = first is None or meaning.line.rank == first.rank
    raised = meaning.weight is Weight.SURE and (
        meaning.line.joined or (meaning.line.raised and is_firsts)
    )
    is_indirect = meaning.line.is_inferred or meaning.line.is_side
    return (meaning.weight is Weight.ROOT or raised) and not is_indirect


def _describe(best: Meaning, line: LogLine, rank: int | None) -> str:
    is_others = best.cause is Cause.MISSING_COLLECTIVE and line.rank not in (rank, None)
    waits = f"rank {line.rank} waits at {line.frame}: " if is_others and line.frame else ""
    return f"{waits}{line.text or best.cause.replace('-', ' ')}"


def _fell(failure: FailureReport | None, rank: int | None, text: str) -> tuple[int, ...]:
    """The ranks that failed after ``rank``, and not with the same exception."""
    worker_ends = failure.ranks if failure else ()
    alike = {end.rank for end in worker_ends if end.exception == text and not end.is_collateral}
    return tuple(sorted({end.rank for end in worker_ends} - alike - {rank}))


def _decide_nothing(evidence: Evidence, first: WorkerEnd | None, *, goes_on: bool) -> Verdict:
    has_failed = not goes_on and evidence.state != RunState.SUCCEEDED.value
    stacks_command = typed.command("stacks", evidence.subject)
    still = [standing for standing in evidence.standing if standing.look.steps]
    least_s = min((standing.look.silent_s for standing in still), default=0.0)
    ranks = name_ranks(standing.look.rank for standing in still)
    silent = f"no step of {ranks} for {least_s:.0f} s; " if still else ""
    what = f"no failure so far; {silent}{stacks_command} tells where its ranks are"
    if evidence.state == "suspended":
        status = typed.command("status", evidence.subject)
        what = f"its job is suspended, and has no nodes; {status} tells how it goes on"
    elif evidence.state == "held":
        status = typed.command("status", evidence.subject)
        what = f"no failure so far; {status} tells who uses its nodes"
    elif evidence.state == "orphaned":
        end = typed.command("stop", evidence.subject)
        what = f"no failure so far, but its launcher has died; {end} ends it"
    what = what if goes_on else "it ended well"
    if has_failed:
        is_read = not evidence.state and not evidence.missing
        unnamed = "no line that was read reports a failure"
        what = unnamed if is_read else "the logs that were read do not say why"
    return Verdict(
        subject=evidence.subject,
        state=evidence.state,
        run_cause=evidence.run_cause,
        cause=Cause.UNKNOWN,
        certainty="unclear" if has_failed else "",
        what=what,
        fix=Cause.UNKNOWN.fix,
        healed=() if has_failed else tuple(str(h) for h in evidence.heals if h.cause != JOINED),
        rank=first.rank if first else None,
        node=first.node_index if first else None,
        missing=evidence.missing,
    )


# -- text ----------------------------------------------------------------------------------------


def render_verdict(verdict: Verdict, *, evidence: bool = False) -> str:
    """At most five lines for a person; with ``evidence`` also what it rests on."""
    # The cause of the record, as ``status`` shows it, stands beside the finer cause.
    broader = (
        verdict.run_cause
        if verdict.certainty and verdict.cause.value != verdict.run_cause
        else None
    )
    state = f" ({verdict.state}{f': {broader}' if broader else ''})" if verdict.state else ""
    if not verdict.certainty:
        lines = [f"{verdict.subject}{state}: {verdict.what}"]
        if (more := len(verdict.healed) - MOST_HEALED) > 0:
            lines.append(
                f"  healed {more} times before: {typed.command('report', verdict.subject)}"
            )
        lines += [f"  healed: {loss}" for loss in verdict.healed[-MOST_HEALED:]]
    else:
        lines = [
            f"{verdict.subject}{state}: {verdict.cause}, {verdict.certainty}: {_cut(verdict.what)}"
        ]
        lines += [f"  where: {verdict.where}"] if verdict.where else []
        lines.append(f"  fix: {verdict.fix}; {verdict.cause.section}")
        lines += [f"  failed after it: {name_ranks(verdict.fell)}"] if verdict.fell else []
    lines += [f"  not read: {'; '.join(verdict.missing)}"] if verdict.missing else []
    if evidence:
        for line in verdict.evidence:
            number = f":{line.number}" if line.number else ""
            lines.append(f"  | {line.file}{number}: {_cut(line.text)}")
    return "\n".join(lines) + "\n"


def render_line(verdict: Verdict) -> str:
    """The verdict in one line, for the record of a failed run."""
    where = f", {verdict.where}" if verdict.where else ""
    return (
        f"{verdict.cause} ({verdict.certainty}){where}; fix: {verdict.fix}; {verdict.cause.section}"
    )


def _cut(text: str) -> str:
    shown = show_line(text)
    return shown if len(shown) <= LINE_CHARACTERS else f"{shown[: LINE_CHARACTERS - 3]}..."
