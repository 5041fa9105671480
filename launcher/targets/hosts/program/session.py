"""What one session of a launcher holds on this host: a lease and tokens, which end with it.

Each session is a process of its own. What only some calls need is imported when they come.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from importlib import import_module

from launcher.contract import protocol
from launcher.contract.waits import SLOW_LOOK_S
from launcher.targets.hosts.program.messages import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from launcher.targets.hosts.program.messages import KeeperSpec, Lease

HELD_LIMIT_S = 60.0
"""How long a lease is held for a launcher that is not heard, as after a loss of power."""
_held: list[int] = []
"""The open files of the lease."""
_tokens: list[Path] = []


def module(name: str) -> Any:
    """A module of the program on hosts."""
    return import_module(f".{name}", __package__)


def end() -> None:
    """Removes tokens, and releases a lease that no keeper got."""
    for token in _tokens:
        with suppress(OSError):
            token.unlink()
    if _held:
        module("leases").release(_held)
        _held.clear()


def read_clock() -> float:
    """The host's clock."""
    return time.time()


def take_lease(
    *, lease: Lease, lease_dir: str, run_dir: str, slots_limit: int | None, containers: bool
) -> list[Lease]:
    """Takes a lease for a node, whose earlier incarnation is ended first; or returns the leases
    that are in the way.

    The conversation holds the lease until ``start_node`` hands it to the node's keeper. Both end if
    the launcher that follows the run in ``run_dir`` is silent for a while. ``slots_limit`` is how
    many slots the host has in all; None for no limit.
    """
    leases = module("leases")
    # An earlier incarnation of the node may still run.
    end_nodes = module("requests").end_nodes
    end_nodes(lease.run_id, lease.node_index, 0.0, in_containers=containers)
    try:
        _held[:] = leases.take(lease_dir, lease, slots_limit)
    except leases.HeldError as error:
        in_the_way: list[Lease] = error.leases
        return in_the_way
    _end_unheard(run_dir, lease.node_index)
    return []


def _end_unheard(run_dir: str, node: int) -> None:
    """Ends this process if the launcher falls silent while its lease is held here.

    Sending code may take long, and sshd notices only late that the launcher's machine is gone.
    """
    state = module("node_state")
    run = import_module("pathlib").Path(run_dir)
    folder = run / protocol.NODES_DIR / str(node)
    folder.mkdir(parents=True, exist_ok=True)
    state.mark_followed(run, node)

    def look() -> None:
        while _held:
            if not state.is_node_followed(folder, HELD_LIMIT_S):
                os._exit(1)
            time.sleep(SLOW_LOOK_S)

    import_module("threading").Thread(target=look, daemon=True).start()


def start_node(*, node: KeeperSpec) -> None:
    """Starts a node's keeper, and hands it the lease of this conversation."""
    # The loader has put the program's folder first.
    module("processes").start_keeper(node, sys.path[0], _held)
    for file in _held:
        os.close(file)
    _held.clear()


def leave_token(*, folder: str, name: str) -> None:
    """Makes a file in ``folder``, which stays as long as the conversation.

    If the folder is missing, the file goes into the nearest one above it: hosts that share that
    one will share the folder.
    """
    _tokens.append(module("reach").leave_token(folder, name))
