"""What one session of a launcher holds on this host: a lease and tokens, which end with it.

Each session is a process of its own. What only some calls need is imported when they come.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from launcher.contract import protocol
from launcher.contract.waits import SLOW_LOOK_S
from launcher.targets.hosts.program.messages import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.targets.hosts.program.messages import KeeperSpec, Lease

HELD_LIMIT_S = 60.0
"""How long a lease is held for a launcher that is not heard, as after a loss of power."""
_held: list[int] = []
"""The open files of the lease."""
_tokens: list[Path] = []


def end() -> None:
    """Removes tokens, and releases a lease that no keeper got."""
    for token in _tokens:
        with suppress(OSError):
            token.unlink()
    if _held:
        from launcher.targets.hosts.program import leases

        leases.release(_held)
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
    from launcher.targets.hosts.program import leases
    from launcher.targets.hosts.program.requests import end_nodes

    # An earlier incarnation of the node may still run.
    end_nodes(lease.run_id, lease.node_index, 0.0, in_containers=containers)
    try:
        _held[:] = leases.acquire(lease_dir, lease, slots_limit)
    except leases.HeldError as error:
        return error.leases
    _end_unheard(run_dir, lease.node_index)
    return []


def _end_unheard(run_dir: str, node: int) -> None:
    """Ends this process if the launcher falls silent while its lease is held here.

    Sending code may take long, and sshd notices only late that the launcher's machine is gone.
    """
    from pathlib import Path
    from threading import Thread

    from launcher.targets.hosts.program.node_state import is_node_followed, mark_followed

    run = Path(run_dir)
    folder = run / protocol.NODES_DIR / str(node)
    folder.mkdir(parents=True, exist_ok=True)
    mark_followed(run, node)

    def end_if_unheard() -> None:
        while _held:
            if not is_node_followed(folder, HELD_LIMIT_S):
                os._exit(1)
            time.sleep(SLOW_LOOK_S)

    Thread(target=end_if_unheard, daemon=True).start()


def start_node(*, node: KeeperSpec) -> None:
    """Starts a node's keeper, and hands it the lease of this conversation."""
    from launcher.targets.hosts.program.processes import start_keeper

    # The loader has put the program's folder first.
    start_keeper(node, sys.path[0], _held)
    for file in _held:
        os.close(file)
    _held.clear()


def leave_token(*, folder: str, name: str) -> None:
    """Makes a file in ``folder``, which stays as long as the conversation.

    If the folder is missing, the file goes into the nearest one above it: hosts that share that
    one will share the folder. Raises ``OSError`` if nothing can be written there.
    """
    from launcher.targets.hosts.program.reach import nearest_folder

    token = nearest_folder(folder) / name
    token.touch()
    _tokens.append(token)
