"""What a person reads when a run has ended. Pure: outcome in, text out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from launcher.agent.faults import is_own_failure
from launcher.contract.reasons import FAULT_OF_REASON, Reason, RunState
from launcher.runs.folder import Outcome

KUBERNETES = "kubernetes"


def render_summary(
    outcome: Outcome,
    *,
    folder: str,
    job_file: str,
    program: str,
    hosts: str | None = None,
    options: str = "",
    runs: str = "",
    extra: str = "",
) -> str:
    """Result, where things are, and the exact next commands; for a failure its first cause.

    All as one types it: ``program`` is how this launcher is called, ``hosts`` what names the
    machines, ``options`` what else was given with the job file, ``runs`` what leads to the run,
    ``extra`` the training's own arguments; the last three are empty or begin with a blank.
    """
    succeeded = outcome.state == RunState.SUCCEEDED.value
    lines = [f"\n{outcome.state.upper()} {outcome.run_id}: {outcome.reason}{_detail(outcome)}"]
    if outcome.failure:
        lines += render_failure(outcome.failure, outcome.reason)
    lines += _results(outcome)
    lines.append(f"  outcome      {folder}/outcome.json")
    lines.append(f"  logs         {folder}/nodes   {program} logs {outcome.run_id}{runs}")
    if outcome.failure or outcome.restarts:
        lines.append(f"  report       {program} report {outcome.run_id}{runs}")
    lines.append(f"  checkpoints  {outcome.checkpoint_dir}")
    where = f"--on {outcome.target}" + (f" --hosts {shlex.quote(hosts)}" if hosts else "")
    where += options
    # On a cluster a job goes on from its own checkpoints, whatever the run.
    earlier = "" if outcome.target == KUBERNETES else f" --resume {outcome.run_id}"
    resume = f"{program} run {job_file} {where}{earlier}{extra}"
    if outcome.metrics.get("steps") or outcome.metrics.get("checkpoint"):
        lines.append(f"  {'train on' if succeeded else 'resume'.ljust(8)}     {resume}")
    lines.append(f"  render it    {program} render {job_file} {where}{extra}")
    return "\n".join(lines)


def render_failure(failure: Mapping[str, Any], reason: str) -> list[str]:
    """The first rank that failed with the end of its log, then those that fell with it."""
    lines = []
    first = failure["first"]
    if first is None:
        lines.append("  no worker left an error; the agent's last lines:")
        return lines + [f"    | {line}" for line in failure["console_tail"]]
    what = "fell with it" if fell_with_a_node(first, reason) else "first failure"
    lines.append(f"  {what}: {_who(first)}: {first['exception']}")
    lines += [f"    | {line}" for line in first["log_tail"]]
    lines.append(f"    log: {first['log']}")
    for other in failure["collateral"]:
        lines.append(f"  fell with it: {_who(other)}: {other['exception']}")
    told = {
        f["host"]: f["clock_offset_s"] for f in (first, *failure["collateral"]) if f.get("host")
    }
    return lines + render_clocks(told)


def without_first(detail: str, failure: Mapping[str, Any] | None) -> str:
    """A node's word on its end without the worker it names, where the first failure is told too.

    Pure. The node names the last worker that it saw, which may only have fallen with the first.
    """
    told = failure is not None and failure["first"] is not None
    return _WORKER_AT_END.sub("", detail) if told else detail


_WORKER_AT_END = re.compile(
    r"(?:^|[:;] )(?:last: )?rank \d+: "
    r"(?:signal \d+|SIG\w+ \(\d+\)|exit code \d+|it hung|out of memory)(?: \(.*\))?$",
    re.DOTALL,
)
"""How ``agent.faults.describe`` tells of a worker, after what the agent says of the run."""


def fell_with_a_node(first: Mapping[str, Any], reason: str) -> bool:
    """Whether even the first worker to fail only missed another: the lost node is the cause. Pure.

    ``reason`` is the run's.
    """
    return reason == Reason.NODE_LOST.value and not is_own_failure(first["exception"])


def _who(failure: Mapping[str, Any]) -> str:
    host = f" ({failure['host']})" if failure.get("host") else ""
    return f"rank {failure['rank']} on node {failure['node_index']}{host}"


def render_clocks(offsets_s: Mapping[str, float]) -> list[str]:
    """A line about hosts whose clocks are off by more than a second. Pure."""
    off = {name: offset_s for name, offset_s in offsets_s.items() if abs(offset_s) > 1.0}
    if not off:
        return []
    told = ", ".join(
        f"{name} {abs(offset_s):.1f} s {'ahead' if offset_s > 0 else 'behind'}"
        for name, offset_s in off.items()
    )
    return [f"  clocks, against this machine's: {told}; times here are corrected"]


def _detail(outcome: Outcome) -> str:
    fault = FAULT_OF_REASON[Reason(outcome.reason)]
    detail = without_first(outcome.detail, outcome.failure)
    parts = [detail] if detail else []
    if outcome.state == RunState.FAILED.value and fault is not None:
        parts.append(f"fault: {fault.value}")
    if outcome.attempts > 1:
        parts.append(f"attempts: {outcome.attempts}")
    return f" ({'; '.join(parts)})" if parts else ""


def _results(outcome: Outcome) -> list[str]:
    metrics = outcome.metrics
    found = []
    if (accuracy := metrics.get("test_accuracy")) is not None:
        found.append(f"  accuracy     {accuracy:.4f}")
    speed = metrics.get("samples_per_s")
    rate = f", {speed:.0f} samples/s" if isinstance(speed, int | float) else ""
    found.append(f"  duration     {outcome.duration_s:.1f} s{rate}")
    if outcome.restarts:
        causes = ", ".join(f"{cause} {count}" for cause, count in outcome.restarts.items())
        found.append(f"  restarts     {causes} (over all nodes)")
    return found
