"""How a run ended, in the lines that every command shows; the text that ends ``run``, with the
commands to type next. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.contract import typed
from launcher.contract.causes import Cause, RunState
from launcher.contract.ending import WorkerEnd, is_own_failure
from launcher.contract.errors import ExitCode
from launcher.runs.heals import Heal, tell_heals
from launcher.runs.outcome import FailureReport, Outcome

if TYPE_CHECKING:
    from launcher.runs.report import Postmortem

COLLATERAL_LINES = 8
CLOCK_OFF_S = 1.0
"""A host whose clock is off by more is named."""


def render_summary(
    outcome: Outcome,
    *,
    folder: str,
    job: Sequence[str],
    extra: Sequence[str] = (),
    has_checkpoints: bool = False,
    resumes_by_run: bool = True,
    resumed: str = "",
    left: Collection[str] = ("outcome", "logs"),
) -> str:
    """The result, a failure's first cause, where things are, and the next commands to type.

    ``job`` are the words that name the job, the target and its options, ``extra`` the training's
    arguments. ``has_checkpoints``: some are known to be there. ``resumes_by_run``: ``--resume``
    names a run. ``resumed`` is the run that this one resumed. ``left``: what the run's folder has.
    """
    succeeded = outcome.state == RunState.SUCCEEDED.value
    lines = ["", *render_end(outcome)]
    lines += _results(outcome.metrics)
    if "outcome" in left:
        lines.append(f"  outcome      {folder}/outcome.json")
    if "logs" in left:
        lines.append(f"  logs         {folder}/nodes   {typed.command('logs', outcome.run_id)}")
    if "outcome" in left and (outcome.failure or outcome.restarts or outcome.heals):
        lines.append(f"  report       {typed.command('report', outcome.run_id)}")
    if outcome.checkpoint_dir:
        lines.append(f"  checkpoints  {outcome.checkpoint_dir}")
    earlier = ("--resume", outcome.run_id) if resumes_by_run else ()
    after = ("--", *extra) if extra else ()
    is_stopped = outcome.state == RunState.STOPPED.value
    has_trained = outcome.metrics.get("steps") or outcome.metrics.get("checkpoint")
    if has_trained or (is_stopped and has_checkpoints):
        resume = typed.command("run", *job, *earlier, *after)
        lines.append(f"  {'train on' if succeeded else 'resume'.ljust(8)}     {resume}")
    same = ("--resume", resumed) if resumed else ()
    if "--in" not in job:  # in a hold nothing is started that could be rendered
        lines.append(f"  render it    {typed.command('render', *job, *same, *after)}")
    lines += render_why(outcome)  # last, where a terminal shows it
    return "\n".join(lines)


def render_end(end: Outcome | Postmortem) -> list[str]:
    """A headline, the first failure, and how often nodes and workers were started again.

    The summary of ``run``, ``status``, ``report`` and its page show these lines.
    """
    lines = [render_headline(end)]
    if end.failure and (end.failure.first or end.cause):
        lines += render_failure(end.failure, end.cause or "")
    lines += render_clocks(end.clock_offsets_s)
    if number := end.replaced_nodes:
        often = "once" if number == 1 else f"{number} times"
        lines.append(f"  nodes        started again {often}")
    lines += render_restarts(end.heals, end.restarts)
    return lines


def render_why(end: Outcome | Postmortem) -> list[str]:
    """The verdict on a failed run in a line, with the command that tells more."""
    why = typed.command("why", end.run_id)
    return [f"  why          {end.verdict}; {why}"] if end.verdict else []


def render_headline(end: Outcome | Postmortem) -> str:
    """The run's end in one line; of a run that goes on, its state."""
    parts = [
        end.cause,
        end.detail,
        f"fault: {end.fault}" if end.fault else None,
        None if end.exit_code is None else f"exit code {end.exit_code}",
        f"{end.duration_s:.1f} s",
        f"{end.attempts} starts of all nodes" if end.attempts > 1 else None,
    ]
    return f"{end.run_id}: {end.state.upper()} on {end.target} ({'; '.join(filter(None, parts))})"


def render_restarts(heals: Sequence[Heal], restarts: Mapping[str, int]) -> list[str]:
    """Heals, joins, and restarts of workers by cause."""
    lines = [f"  {name:<13}{how}" for name, how in tell_heals(heals).items()]
    causes = ", ".join(f"{cause} {count}" for cause, count in restarts.items())
    return [*lines, f"  restarts     {causes} (over all nodes)"] if causes else lines


def render_failure(failure: FailureReport, cause: str) -> list[str]:
    """The first failed worker with the end of its log, then the workers that fell with it.

    If no worker left an error: the agent's last lines. ``cause`` is the run's.
    """
    first = failure.first
    if first is None:
        tail = [f"    | {line}" for line in failure.console_tail]
        return ["  no worker left an error; the agent's last lines:", *tail] if tail else []
    what = "left early" if first.cause is Cause.EXITED_EARLY else "first failure"
    if fell_with_a_node(first, cause):
        what = "failed after it"
    others = failure.collateral
    is_told = cause == Cause.BAD_INPUT and first.last_words and first.steps == 0
    if is_told and all(map(_says_as_much, failure.ranks)):
        # The headline has its last line, and the other workers said the same or nothing.
        return [f"  log          {first.log}"]
    if first.attempt:
        what += f" in attempt {first.attempt}"
    lines = [f"  {what}: {first.place}: {first.exception}"]
    lines += [f"    | {line}" for line in first.log_tail]
    lines.append(f"    log: {first.log}")
    lines += [f"  failed after it: {_who(o)}: {o.exception}" for o in others[:COLLATERAL_LINES]]
    if len(others) > COLLATERAL_LINES:
        more = len(others) - COLLATERAL_LINES
        lines.append(f"  and {more} more; all of them: {typed.command('report', '--json')}")
    return lines


def _says_as_much(end: WorkerEnd) -> bool:
    """Whether a worker failed on bad input too, or was ended before it could."""
    return end.exit_code == ExitCode.BAD_INPUT or end.cause is Cause.TERMINATED


def _who(failure: WorkerEnd) -> str:
    return failure.place + (f", attempt {failure.attempt}" if failure.attempt else "")


def fell_with_a_node(first: WorkerEnd, cause: str) -> bool:
    """Whether the first worker failed only because a node was lost. Pure."""
    return cause == Cause.NODE_LOST and not is_own_failure(first.exception)


def render_clocks(offsets_s: Mapping[str, float]) -> list[str]:
    """A line about hosts whose clocks are off. Pure."""
    off = ", ".join(
        f"{name} {abs(offset_s):.1f} s {'ahead' if offset_s > 0 else 'behind'}"
        for name, offset_s in offsets_s.items()
        if abs(offset_s) > CLOCK_OFF_S
    )
    return [f"  clocks, against this machine's: {off}; times here are corrected"] if off else []


def _results(metrics: Mapping[str, object]) -> list[str]:
    accuracy, speed = (metrics.get(key) for key in ("test_accuracy", "samples_per_s"))
    lines = []
    if isinstance(accuracy, int | float):
        lines.append(f"  accuracy     {accuracy:.4f}")
    if isinstance(speed, int | float):
        lines.append(f"  speed        {speed:.0f} samples/s")
    if left_out := metrics.get("left_out"):
        lines.append(f"  left out     {left_out}")
    return lines
