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
    check_scale(plan, nodes, own_checkpoints=bool(target.traits.own_checkpoints))
    is_over = read_outcome_now(run, plan) is not None
    answer = f"{run.run_id}: asked for {count_nodes(nodes)}"
    if not is_over and run.launcher_pid() is None and target.scale(run, plan, nodes):
        return answer
    if is_over or run.launcher_pid() is None:
        what = f"{run.run_id} has ended, or no launcher follows it"
        raise InputError(what, f"{typed.command('ps')} lists the runs that go on")
    request = request_scale(run, nodes)
    if not wait_until(lambda: not request.exists(), ANSWER_LIMIT_S, SOON_S, clock):
        what = f"the launcher of {run.run_id} has not answered for {ANSWER_LIMIT_S:g} s"
        raise TargetError(what, typed.command("status", run.run_id))
    return f"{answer}; {typed.command('status', run.run_id)} shows them"
