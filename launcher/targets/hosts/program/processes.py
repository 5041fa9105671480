"""Starts keepers, feeds programs, and finds the processes of a run on this host."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.keeper_record import write_record
from launcher.contract.process_stat import start_of
from launcher.targets import process_table

KEEPER = "LAUNCHER_KEEPER"
"""Only a node's keeper has this variable."""


def feed(argv: Sequence[str], chunks: Iterable[bytes]) -> str:
    """Feeds ``chunks`` to a command; returns its error output if it fails, else nothing."""
    import tempfile

    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=said, stderr=said)
        assert child.stdin is not None
        for chunk in chunks:
            # After a failure the rest is still read, as the sender waits for that.
            with contextlib.suppress(OSError):
                child.stdin.write(chunk)
        with contextlib.suppress(OSError):
            child.stdin.close()
        # Ended by the command, whose input has ended, or with this session by the sender's limit.
        code = child.wait()
        said.seek(0)
        return "" if code == 0 else said.read().decode(errors="replace").strip() or "failed"


def start_keeper(
    argv: Sequence[str], env: Mapping[str, str], spec: bytes, log: Path, files: Sequence[int]
) -> None:
    """Starts a process that outlives this session, records it, and sends it ``spec``.

    The process inherits the open ``files``. The spec has secrets, so it goes through standard
    input and not through a file or arguments.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            env=env,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=files,
        )
    assert child.stdin is not None
    # The keeper writes this too, but later: until then the node would count as lost.
    write_record(log.parent, {"pid": child.pid, "start": start_of(child.pid)})
    child.stdin.write(spec)
    child.stdin.close()
    child.returncode = 0  # nobody here waits for it


def find(run_id: str, node: int | None = None, *, keepers: bool | None = False) -> tuple[int, ...]:
    """Pids of a run's processes, or of its ``node``: keepers, all others, or for None both."""
    return tuple(
        pid
        for pid, env in process_table.environments()
        if env.get(protocol.RUN_ID) == run_id
        and (node is None or env.get(protocol.NODE_INDEX) == str(node))
        and keepers in (None, KEEPER in env)
    )
