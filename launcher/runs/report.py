"""A run told in full, while it runs or later: cause, restarts, nodes, and what happened when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.contract import protocol
from launcher.runs.goodput import measure_goodput
from launcher.api.listing import name_logs, read_state
from launcher.runs.node_outcomes import (
    agent_ledger,
    by_launchers_clock,
    clock_offsets,
    read_ledger,
    read_node_outcome,
    read_restarts,
    read_train_ledger,
)
from launcher.runs.failure import read_report
from launcher.runs.folder import POD_LEDGER, POD_SOURCE, Outcome, RunFolder
from launcher.contract.reasons import FAULT_OF_REASON, TERMINAL_STATES, RunState
from launcher.targets.kubernetes.story import bring_story, read_story
from launcher.runs.summary import fell_with_a_node, render_clocks, without_first
from launcher.runs.timeline import Event, measure_phases, tell_timeline

TIMELINE_LINES = 40
COLLATERAL_LINES = 8
LAST = "agent-ended"
AGENT = "agent: "
"""Before what an agent said on its console."""

Ledgers = Mapping[tuple[int, int], Sequence[Event]]
"""The agents' events by (node index, incarnation)."""


def read_postmortem(run: RunFolder, now: float, claim: Path | None = None) -> dict[str, Any]:
    """All that is known of a run as plain data; ``now`` is seconds since the epoch.

    ``claim`` is where this machine sees the claim of a run that is only on its cluster. Gives a run
    that ended unseen its outcome. Raises ``InputError`` for a folder without a plan.
    """
    plan = run.read_plan()
    if run.is_borrowed:
        bring_story(run, plan, claim)
    state, outcome = read_state(run, plan)
    offsets = clock_offsets(plan)
    ledgers = {
        node: by_launchers_clock(read_ledger(agent_ledger(run, *node)), offsets)
        for node in run.incarnations()
    }
    submitted_at = run.submitted_at()
    over = state in {ended.value for ended in TERMINAL_STATES}
    nodes = _read_nodes(run, ledgers, None if over else now)
    events = [event for events in ledgers.values() for event in events]
    of_pods = read_ledger(run.path / protocol.LEDGER_DIR / POD_LEDGER, POD_SOURCE)
    if run.is_borrowed:
        # The cluster's own story has the pods' times; the agents' words are in their logs alone.
        of_pods = tuple(event for event in of_pods if str(event["text"]).startswith(AGENT))
    ended_at = submitted_at + outcome.duration_s if outcome else now
    story = read_story(run)
    _complete(nodes, story["nodes"])
    failure = outcome.failure if outcome else read_report(run, plan).to_jsonable()
    trained = by_launchers_clock(read_train_ledger(run), offsets)
    goodput = measure_goodput(trained, events, submitted_at, ended_at)
    return {
        "run_id": run.run_id,
        "job": plan.job_name,
        "target": plan.target,
        "engine": "torchrun" if plan.agent is None else "agent",
        "state": state,
        "reason": outcome.reason if outcome else None,
        "fault": _fault(outcome),
        "detail": outcome.detail if outcome else "",
        "exit_code": outcome.exit_code if outcome else None,
        "attempts": plan.attempt + 1,
        "duration_s": outcome.duration_s if outcome else round(now - submitted_at, 3),
        # Of a run that goes on: what made its present attempt fail, if it has.
        "failure": name_logs(run, failure) if failure and run.is_borrowed else failure,
        "restarts": (outcome.restarts if outcome else None) or read_restarts(run),
        "nodes": nodes,
        "clock_offsets_s": {plan.machines[i].name: offsets[i] for i in offsets},
        "phases_s": _sum_phases(nodes),
        "goodput": goodput.to_jsonable() if goodput else None,
        "timeline": _merge(
            [asdict(moment) for moment in tell_timeline([*events, *of_pods], submitted_at)],
            story["said"],
            submitted_at,
        ),
        "folder": "" if run.is_borrowed else str(run.path),
    }


def _complete(nodes: list[dict[str, Any]], told: Sequence[Mapping[str, Any]]) -> None:
    """Adds what the cluster says of nodes whose agents said nothing."""
    by_place = {(node["node_index"], node["incarnation"]): node for node in nodes}
    for one in told:
        place = (one["node_index"], one["incarnation"])
        node = by_place.get(place)
        if node is None:
            nodes.append({**one, "attempts": 0})
        elif node["reason"] is None:
            node.update({**one, "phases_s": node["phases_s"] or one["phases_s"]})
        else:
            node["phases_s"] = node["phases_s"] or one["phases_s"]
    nodes.sort(key=lambda node: (node["node_index"], node["incarnation"]))


def _merge(
    moments: list[dict[str, Any]], said: Sequence[Mapping[str, Any]], submitted_at: float
) -> list[dict[str, Any]]:
    """The agents' moments and the cluster's, oldest first; of the job as a whole: no node."""
    for one in said:
        index, incarnation = one["place"] or (None, None)
        after_s = round(one["at"] - submitted_at, 3)
        where = {"node_index": index, "incarnation": incarnation}
        moments.append({"after_s": after_s, **where, "text": one["text"]})
    return sorted(moments, key=lambda moment: float(moment["after_s"]))


def _fault(outcome: Outcome | None) -> str | None:
    fault = FAULT_OF_REASON[outcome.reason_enum] if outcome else None
    failed = outcome is not None and outcome.state == RunState.FAILED.value
    return fault.value if fault and failed else None


def _read_nodes(run: RunFolder, ledgers: Ledgers, now: float | None) -> list[dict[str, Any]]:
    attempts = Counter(
        node for node, _ in {((w.node_index, w.incarnation), w.attempt) for w in run.worker_logs()}
    )
    steps_seen = any(e.get("event") == "first-step" for events in ledgers.values() for e in events)
    # Ordered by incarnation: the last one of each index stays.
    newest = dict(ledgers.keys())
    found = []
    for node, events in ledgers.items():
        index, incarnation = node
        outcome = read_node_outcome(run, index, incarnation)
        ended = next((event for event in reversed(events) if event.get("event") == LAST), None)
        told = (
            {"reason": outcome.reason.value, "exit_code": outcome.exit_code} if outcome else ended
        )
        runs_on = told is None and newest[index] == incarnation
        found.append(
            {
                "node_index": index,
                "incarnation": incarnation,
                "attempts": outcome.attempts if outcome else attempts[node],
                "reason": told.get("reason") if told else None,
                "exit_code": told.get("exit_code") if told else None,
                "detail": outcome.detail if outcome else "",
                "phases_s": measure_phases(
                    events, steps_seen=steps_seen, now=now if runs_on else None
                ),
            }
        )
    return found


def _sum_phases(nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for node in nodes:
        for phase, spent_s in node["phases_s"].items():
            total[phase] = round(total.get(phase, 0.0) + spent_s, 3)
    return total


# -- text --------------------------------------------------------------------------------------


def render_postmortem(told: Mapping[str, Any]) -> str:
    """What ``read_postmortem`` found, for a person. Pure."""
    lines = [_headline(told)]
    if told["failure"]:
        lines += _render_failure(told["failure"], told["reason"])
    if told["restarts"]:
        causes = ", ".join(f"{cause} {count}" for cause, count in told["restarts"].items())
        lines.append(f"  restarts by cause, over all nodes: {causes}")
    lines += render_clocks(told.get("clock_offsets_s", {}))
    lines.append("  nodes:")
    lines += [_render_node(node, told) for node in told["nodes"]]
    if told["phases_s"]:
        lines.append(f"  seconds by phase, over all nodes: {_phases(told['phases_s'])}")
    lines += _render_goodput(told.get("goodput"))
    lines += _render_timeline(told["timeline"])
    lines += [f"  folder: {told['folder']}"] if told["folder"] else []
    return "\n".join(lines) + "\n"


def _headline(told: Mapping[str, Any]) -> str:
    parts = [told["reason"], without_first(told["detail"], told["failure"])]
    parts.append(f"fault: {told['fault']}" if told["fault"] else None)
    parts.append(None if told["exit_code"] is None else f"exit code {told['exit_code']}")
    parts.append(f"{told['duration_s']:.1f} s")
    parts.append(f"{told['attempts']} starts of all nodes" if told["attempts"] > 1 else None)
    about = "; ".join(part for part in parts if part)
    return (
        f"{told['run_id']}: {told['state']} on {told['target']}, engine {told['engine']} ({about})"
    )


def _render_failure(failure: Mapping[str, Any], reason: str | None) -> list[str]:
    first = failure["first"]
    if first is None:
        tail = [f"    | {line}" for line in failure["console_tail"]] if reason else []
        return ["  no worker left an error; the agent's last lines:", *tail] if tail else []
    what = "fell with it" if fell_with_a_node(first, reason or "") else "first cause"
    lines = [f"  {what}: {_who(first)}: {first['exception']}"]
    lines += [f"    | {line}" for line in first["log_tail"]]
    lines.append(f"    log: {first['log']}")
    others = failure["collateral"]
    lines += [f"  fell with it: {_who(o)}: {o['exception']}" for o in others[:COLLATERAL_LINES]]
    if len(others) > COLLATERAL_LINES:
        lines.append(f"  and {len(others) - COLLATERAL_LINES} more; all of them: --json")
    return lines


def _who(failure: Mapping[str, Any]) -> str:
    host = f" ({failure['host']})" if failure.get("host") else ""
    who = f"node {failure['node_index']}{host}, rank {failure['rank']}"
    return who + (f", attempt {failure['attempt']}" if "attempt" in failure else "")


def _render_node(node: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    if node["reason"]:
        how = f"{node['reason']}, exit code {node['exit_code']}"
        detail = without_first(node["detail"], told["failure"])
        how += f" ({detail})" if detail else ""
    elif told["engine"] == "torchrun":
        how = "plain torchrun keeps no report of a node"
    else:
        how = "no report: it runs, or was killed"
    phases = f"; {_phases(node['phases_s'])}" if node["phases_s"] else ""
    count = node["attempts"]
    attempts = f"{count} attempt{'' if count == 1 else 's'}"
    return f"    {node['node_index']}.{node['incarnation']}: {attempts}, {how}{phases}"


def _phases(phases_s: Mapping[str, float]) -> str:
    return ", ".join(f"{phase} {spent_s:.1f} s" for phase, spent_s in phases_s.items())


def _render_goodput(goodput: Mapping[str, Any] | None) -> list[str]:
    if goodput is None:
        return []
    seconds = {name: spent_s for name, spent_s in goodput["seconds"].items() if spent_s >= 0.05}
    sizes = [str(size) for _, size in goodput["world"] if size]
    changes = " -> ".join(size for n, size in enumerate(sizes) if n == 0 or size != sizes[n - 1])
    return [
        f"  goodput: {goodput['share']:.1%} of {goodput['wall_s']:.1f} s ({_phases(seconds)})",
        f"  training: {_count(goodput['starts'], 'start')}, "
        f"{_count(goodput['lost_steps'], 'step')} made again; workers over time: {changes}",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _render_timeline(timeline: Sequence[Mapping[str, Any]]) -> list[str]:
    if not timeline:
        return []
    left_out = len(timeline) - TIMELINE_LINES
    lines = ["  timeline, seconds since submission, node.incarnation:"]
    if left_out > 0:
        lines.append(f"    {left_out} earlier events; all of them: --json")
    return lines + [
        f"    {moment['after_s']:9.2f}  {_where(moment)}  {moment['text']}"
        for moment in timeline[-TIMELINE_LINES:]
    ]


def _where(moment: Mapping[str, Any]) -> str:
    if moment["node_index"] is None:
        return "job"
    return f"{moment['node_index']}.{moment['incarnation']}"
