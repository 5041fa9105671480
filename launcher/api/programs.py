"""Runs a program or a shell in the nodes of a run, beside its workers: ``exec`` and ``shell``."""

from __future__ import annotations

from collections.abc import Callable

from launcher.api.choose_target import target_of
from launcher.api.listing import read_state
from launcher.contract.errors import InputError, LauncherError
from launcher.follow.target import Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.targets.at_once import at_once
from launcher.targets.subprocesses.conversation import Conversation

_BOTH_STREAMS = ("sh", "-c", 'exec "$@" 2>&1', "sh")
_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")


def run_in_nodes(
    run: RunFolder, argv: tuple[str, ...], show: Callable[[int, str], None], node: int | None = None
) -> dict[int, int]:
    """Runs ``argv`` in all nodes at once, or in one, and returns the exit codes by node.

    ``show`` gets each line with its node. A node that is not reached has code 255, and a line that
    says why. Raises ``InputError`` for a run that has ended.
    """
    plan, target = _open(run, node)

    def begin(index: int) -> int:
        try:
            program = _with_env(plan, index, (*_BOTH_STREAMS, *argv))
            talk = Conversation(target.door(plan, index).command(program))
        except (LauncherError, OSError) as error:
            show(index, f"not reached: {error}")
            return 255
        talk.stdin.close()
        has_output = False
        # Ended by the program, or by the person.
        for line in talk.stdout:
            has_output = True
            show(index, line.decode(errors="replace").rstrip("\n"))
        code, errors = talk.end()
        # Those of ssh or the like: after a program's own output they only repeat the code.
        for reason in errors.splitlines() if code and not has_output else ():
            show(index, reason)
        return code if code >= 0 else 128 - code

    wanted = [n.node_index for n in plan.nodes] if node is None else [node]
    return dict(zip(wanted, at_once(begin, wanted), strict=True))


def plan_shell(run: RunFolder, node: int) -> tuple[str, ...]:
    """The command on this machine that opens a terminal in a node. Raises as ``run_in_nodes``."""
    plan, target = _open(run, node)
    return target.door(plan, node).command(_with_env(plan, node, _SHELL), terminal=True)


def _with_env(plan: LaunchPlan, node: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The program with the variables that the node's workers have, however it is reached."""
    return ("env", *(f"{name}={value}" for name, value in plan.nodes[node].env), *argv)


def _open(run: RunFolder, node: int | None) -> tuple[LaunchPlan, Target]:
    plan = run.read_plan()
    _, outcome = read_state(run, plan)
    if outcome is not None:
        raise InputError(f"{run.run_id} has ended ({outcome.cause})", "name a run that goes on")
    last = len(plan.nodes) - 1
    if node is not None and node > last:
        raise InputError(f"node {node}: {run.run_id} has node 0 to {last}", "one of them")
    target = target_of(plan, run.path.parent)
    return target.as_run(plan), target
