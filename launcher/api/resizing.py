"""Changes the number of nodes of an elastic run that goes on."""

from __future__ import annotations

from launcher.api.choose_target import target_of
from launcher.api.stopping import read_outcome_now
from launcher.contract import typed
from launcher.contract.clock import Clock
from launcher.contract.errors import InputError, TargetError
from launcher.contract.waits import SOON_S, wait_until
from launcher.follow.requests import check_scale, count_nodes, request_scale
from launcher.runs.folder import RunFolder

ANSWER_LIMIT_S = 30.0
"""How long the run's launcher may take to take the request."""


def scale_run(run: RunFolder, nodes: int, clock: Clock | None = None) -> str:
    """Asks for ``nodes`` nodes and waits until the request is taken up; returns what was said.

    Raises ``InputError`` if the run cannot have that many, ``TargetError`` if its launcher does
    not answer. Idempotent.
    """
    plan = run.read_plan()
    target = target_of(plan, run.path.parent)
    going_on = f"{typed.command('ps')} lists the runs that go on"
    if (outcome := read_outcome_now(run, plan)) is not None:
        raise InputError(f"{run.run_id} has ended ({outcome.cause})", going_on)
    check_scale(plan, nodes, own_checkpoints=bool(target.traits.own_checkpoints))
    answer = f"{run.run_id}: asked for {count_nodes(nodes)}"
    if run.launcher_pid() is None and target.scale(run, plan, nodes):
        return answer
    if run.launcher_pid() is None:
        raise InputError(f"{run.run_id}: no launcher follows it", going_on)
    request = request_scale(run, nodes)
    if not wait_until(lambda: not request.exists(), ANSWER_LIMIT_S, SOON_S, clock):
        what = f"the launcher of {run.run_id} has not answered for {ANSWER_LIMIT_S:g} s"
        raise TargetError(what, typed.command("status", run.run_id))
    return f"{answer}; {typed.command('status', run.run_id)} shows them"
