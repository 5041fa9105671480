"""Whether ``launcher run`` was called where ``launcher node`` is meant: it would train alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher.contract.errors import InputError
from launcher.targets import proc
from launcher.targets.starter.starters import Blaunch, Pbs, find_starter

ASK_LIMIT_S = 5.0
FLUX_SIZE = ("flux", "getattr", "size")
"""How many nodes a Flux instance has: FLUX_URI alone does not tell that."""
ALONE = "for this machine alone: --on local"
LAUNCHED_BY_FLUX = "flux run --tasks-per-node=1"


def check_alone(
    environ: Mapping[str, str],
    ask: Callable[[tuple[str, ...], float], str | None] = proc.read_output,
) -> None:
    """Raises ``InputError`` in one of several processes, and in a job of several nodes.

    ``ask`` runs a short command.
    """
    starter = find_starter(environ)
    if starter is None:
        if "FLUX_URI" in environ:
            told = (ask(FLUX_SIZE, ASK_LIMIT_S) or "").strip()
            _check_nodes(int(told) if told.isdigit() else 1, "Flux", LAUNCHED_BY_FLUX)
        return
    nodes, here = starter.read_nodes(environ)
    if isinstance(starter, Pbs | Blaunch):
        # Their batch scripts look as the processes do that they start.
        scheduler = "PBS" if isinstance(starter, Pbs) else "LSF"
        _check_nodes(nodes or 1, scheduler, starter.one_on_each)
    elif (nodes or 1) * here > 1:
        raise InputError(
            f"{starter.name} started {(nodes or 1) * here} of these, and each would train alone",
            f"{starter.one_on_each} launcher node ...; {ALONE}",
        )


def _check_nodes(nodes: int, scheduler: str, start: str) -> None:
    if nodes > 1:
        raise InputError(
            f"this job of {scheduler} has {nodes} nodes, and launcher run would use this one alone",
            f"start all of them: {start} launcher node ...; {ALONE}",
        )
