"""The verdict: what happened first, where, why, how sure that is, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from launcher.contract.reasons import RunState
from launcher.contract.worker_end import WorkerEnd, show_line
from launcher.runs.outcome import FailureReport
from launcher.verdict.cause import Cause
from launcher.verdict.evidence import Evidence
from launcher.verdict.rules.all import judge_end, judge_lines, judge_reason
from launcher.verdict.rules.rule import Finding, Weight
from launcher.verdict.scan import Line

MOST_SHOWN = 12
LINE_CHARACTERS = 160
CERTAINTY = {Weight.ROOT: "certain", Weight.SURE: "certain", Weight.LIKELY: "likely"}
"""Of a finding that nothing speaks against; all others are unclear."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One judgement of a run or of logs.

    ``certainty`` is certain, likely or unclear; empty where nothing has failed. ``node`` and
    ``rank`` are None where they are not known; ``place`` is a line of the user's code.
    """

    subject: str
    state: str
    cause: Cause
    certainty: str
    what: str
    fix: str
    node: int | None = None
    rank: int | None = None
    host: str = ""
    place: str = ""
    fell: tuple[int, ...] = ()
    evidence: tuple[Line, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Rank, node, host and line in words; empty where none of them is known."""
        node = None if self.node is None else f"node {self.node}"
        rank = None if self.rank is None else f"rank {self.rank}"
        who = " on ".join(filter(None, (rank, node))) + (f" ({self.host})" if self.host else "")
        return ", ".join(filter(None, (who, self.place)))

    def to_jsonable(self) -> dict[str, object]:
        """Plain data for ``--json``."""
        return {**asdict(self), "reason": self.cause.reason, "runbook": self.cause.section}


def decide_verdict(evidence: Evidence) -> Verdict:
    """The first cause of what the evidence holds."""
    failure, goes_on = evidence.failure, evidence.state in ("running", "orphaned")
    first = failure.first if failure else None
    found = list(judge_lines(evidence.lines))
    if first:
        found.append(judge_end(first))
    found += judge_reason(evidence.reason, evidence.detail)
    if evidence.state == RunState.SUCCEEDED.value:
        found = []
    if goes_on and first is None:
        found = [one for one in found if one.weight >= Weight.SURE]
    ordered = _order(found, first)
    if not ordered:
        return _nothing(evidence, first, goes_on=goes_on)
    best = ordered[0]
    line = _with_frame(best, ordered)
    rank = line.rank if line.rank is not None or best.weight == Weight.ROOT else _rank(first)
    node = line.node
    if node is None and first and evidence.knows_nodes and rank in (first.rank, None):
        node = first.node_index
    return Verdict(
        subject=evidence.subject,
        state=evidence.state,
        cause=best.cause,
        certainty=_judge_certainty(best, ordered),
        what=line.text or best.cause.replace("-", " "),
        fix=best.cause.fix.replace("PACKAGE", best.package or "PACKAGE"),
        node=node,
        rank=rank,
        host=first.host if first and first.node_index == node else "",
        place=line.frame,
        fell=_fell(failure, rank),
        evidence=tuple(one.line for one in ordered[:MOST_SHOWN]),
        missing=evidence.missing,
    )


def _rank(first: WorkerEnd | None) -> int | None:
    return first.rank if first else None


def _order(found: Iterable[Finding], first: WorkerEnd | None) -> list[Finding]:
    """The heaviest before others; among equals the first failed worker's, then as they came."""
    all_found = list(found)
    timed = all(one.line.at for one in all_found)

    def key(one: Finding) -> tuple[float, ...]:
        is_own = first is None or one.line.rank == first.rank
        # What others say once it is gone: they are judged, and it came before them.
        is_after = not is_own and one.line.rank is not None and one.weight < Weight.ROOT
        is_general = one.cause is Cause.SCRIPT_ERROR
        return (is_after, -one.weight, not is_own, is_general, one.line.at if timed else 0.0)

    return sorted(all_found, key=key)


def _with_frame(best: Finding, found: Sequence[Finding]) -> Line:
    """The finding's line; that of the same words with the place in the code where one has it."""
    same = (one.line for one in found if one.line.text == best.line.text and one.line.frame)
    return best.line if best.line.frame else next(same, best.line)


def _judge_certainty(best: Finding, found: Sequence[Finding]) -> str:
    rivals = {one.cause for one in found if one.weight >= max(best.weight, Weight.LIKELY)}
    certainty = CERTAINTY.get(best.weight, "unclear")
    return "likely" if certainty == "certain" and rivals - {best.cause} else certainty


def _fell(failure: FailureReport | None, rank: int | None) -> tuple[int, ...]:
    return tuple(sorted({end.rank for end in failure.ranks if end.rank != rank})) if failure else ()


def _nothing(evidence: Evidence, first: WorkerEnd | None, *, goes_on: bool) -> Verdict:
    what = "nothing that was read tells why"
    if goes_on:
        what = evidence.now or "no failure so far"
    elif evidence.state == RunState.SUCCEEDED.value:
        what = "it ended well"
    elif not evidence.state and not evidence.missing:
        what = "no line that was read tells of a failure"
    return Verdict(
        subject=evidence.subject,
        state=evidence.state,
        cause=Cause.UNKNOWN,
        certainty="" if goes_on or evidence.state == RunState.SUCCEEDED.value else "unclear",
        what=what,
        fix=Cause.UNKNOWN.fix,
        rank=first.rank if first else None,
        node=first.node_index if first else None,
        missing=evidence.missing,
    )


# -- text ----------------------------------------------------------------------------------------


def render_verdict(told: Verdict, *, evidence: bool = False) -> str:
    """At most five lines for a person; with ``evidence`` also what it rests on."""
    state = f" ({told.state})" if told.state else ""
    if not told.certainty:
        lines = [f"{told.subject}{state}: {told.what}"]
    else:
        lines = [f"{told.subject}{state}: {told.cause}, {told.certainty}: {_cut(told.what)}"]
        lines += [f"  where: {told.where}"] if told.where else []
        lines.append(f"  fix: {told.fix}; {told.cause.section}")
        lines += [f"  fell with it: {name_ranks(told.fell)}"] if told.fell else []
    lines += [f"  not read: {'; '.join(told.missing)}"] if told.missing else []
    if evidence:
        for line in told.evidence:
            number = f":{line.number}" if line.number else ""
            lines.append(f"  | {line.file}{number}: {_cut(line.text)}")
    return "\n".join(lines) + "\n"


def render_line(told: Verdict) -> str:
    """The verdict in one line, for the record of a failed run."""
    where = f", {told.where}" if told.where else ""
    return f"{told.cause} ({told.certainty}){where}; {told.cause.section}"


def _cut(text: str) -> str:
    shown = show_line(text)
    return shown if len(shown) <= LINE_CHARACTERS else f"{shown[: LINE_CHARACTERS - 3]}..."


def name_ranks(ranks: Sequence[int]) -> str:
    """``ranks 0-2, 5``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    told = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'s' if len(ranks) > 1 else ''} {told}"
