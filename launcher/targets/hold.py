"""A hold, seen from the launcher: nodes that wait, and whoever uses them."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from launcher.contract import typed
from launcher.contract.errors import InputError, TargetError
from launcher.contract.hold import (
    OWNER_FILE,
    READY_FILE,
    START_REQUEST,
    USER_FILE,
    StartRun,
    User,
)
from launcher.contract.keeper_record import RECORD
from launcher.contract.records import dump_record, parse_record
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.nnodes import NodesThere
from launcher.runs.folder import RunFolder, write_atomically

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

TAKEN_LIMIT_S = 120.0
"""How long a node may take to begin: it may import torch first, or end a dead launcher's run."""
TRIES = 200
POLL_S = 0.01


class Hold:
    """The nodes of a hold, for one run at a time. ``fresh``: with new interpreters."""

    def __init__(self, run: RunFolder, *, fresh: bool = False) -> None:
        self.run, self.fresh = run, fresh
        self._user = run.path / USER_FILE
        self._file: IO[str] | None = None
        self._touched_at = float("-inf")

    @property
    def plan(self) -> LaunchPlan:
        """As it is now: lost nodes are replaced."""
        return self.run.read_plan()

    @property
    def there(self) -> NodesThere:
        """Its nodes, for a job that runs on all of them or on some."""
        count = len(self.plan.nodes)
        says = f"the hold {self.plan.job_name} has {count}"
        return NodesThere(count=count, says=says, fix=f"--nnodes {count}, or a larger hold")

    def fit(self, job: JobSpec) -> JobSpec:
        """The job with what it leaves open as the hold has it, forked from its torch."""
        nproc = self.plan.nodes[0].nproc_per_node
        open_keys = {"nproc_per_node": nproc, "start": "fresh" if self.fresh else "fork"}
        asks = job.model_fields_set | ({"nproc_per_node"} if job.devices else set())
        return job.model_copy(update={k: v for k, v in open_keys.items() if k not in asks})

    def read_user(self) -> User | None:
        """Who uses it; None where it is free."""
        with contextlib.suppress(OSError, ValueError), self._user.open() as file:
            user = parse_record(User, json.load(file))
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return user
        return None

    def enter(self, run_id: str) -> None:
        """Takes it for a run. Raises ``InputError`` naming the run that has it.

        The lock lasts as long as this process, or one that was forked from it.
        """
        if self._file is not None:
            return
        file, user = self._open_user(), None
        for _ in range(TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                own = User(run_id=run_id, owner=f"{getpass.getuser()}@{socket.gethostname()}")
                self._file = file
                self._write(dump_record(own))
                return
            if (user := self.read_user()) is not None:
                break
            # Ended soon: one who has the lock writes at once who it is, and one who looks lets go.
            time.sleep(POLL_S)
        file.close()
        who = f"{user.run_id} of {user.owner}" if user else "another run"
        fix = f"wait for it, or end it: {typed.command('stop', user.run_id)}" if user else "again"
        raise InputError(f"{self.plan.job_name} is in use: {who} runs there", fix)

    def _open_user(self) -> IO[str]:
        try:
            return os.fdopen(os.open(self._user, os.O_RDWR | os.O_CREAT, 0o644), "r+")
        except OSError as error:
            what = f"{self.plan.job_name} cannot be used: {self._user}: {error.strerror}"
            raise InputError(what, typed.command("hold", "--name", "NAME")) from error

    def _write(self, text: str) -> None:
        assert self._file is not None
        self._file.truncate(0)
        self._file.seek(0)
        self._file.write(text)
        self._file.flush()

    def touch(self) -> None:
        """Shows that the run's launcher lives; cheap."""
        now = time.monotonic()
        if self._file is not None and now - self._touched_at > 1.0:
            self._touched_at = now
            with contextlib.suppress(OSError):
                os.utime(self._file.fileno())

    def leave(self) -> None:
        """Frees it, if this process has it."""
        if self._file is not None:
            self._write("")
            # By name: a process that this one was forked from may still have the file open.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None

    def start(self, task: str, node_dir: str, index: int, cwd: str, env: dict[str, str]) -> None:
        """Starts a run's node on the held node of that index. Raises ``TargetError``."""
        held = self.plan.nodes[index]
        folder = self.run.node_dir(held.node_index, held.incarnation)
        asked = StartRun(
            task=task, node_dir=node_dir, cwd=cwd, env=tuple(env.items()), fresh=self.fresh
        )
        # It holds the secrets, and is gone once the node has read it.
        mask = os.umask(0o077)
        try:
            write_atomically(folder / START_REQUEST, dump_record(asked))
        finally:
            os.umask(mask)
        end = time.monotonic() + TAKEN_LIMIT_S
        while not Path(node_dir, RECORD).exists():
            if time.monotonic() > end:
                (folder / START_REQUEST).unlink(missing_ok=True)
                what = f"node {index} of the hold {self.plan.job_name} does not answer"
                raise TargetError(what, typed.command("status", self.run.run_id))
            self.touch()
            time.sleep(POLL_S)

    def is_ready(self) -> bool:
        """Whether all of its nodes take runs."""
        nodes = self.plan.nodes
        folders = (self.run.node_dir(node.node_index, node.incarnation) for node in nodes)
        return all((folder / READY_FILE).exists() for folder in folders)


def is_hold(plan: LaunchPlan) -> bool:
    """Whether its nodes wait for runs."""
    return plan.agent is not None and plan.agent.hold_idle_s > 0


def describe_hold(run: RunFolder) -> str:
    """Who holds it, and who uses it, in words."""
    owner = "somebody"
    with contextlib.suppress(OSError):
        owner = (run.path / OWNER_FILE).read_text().strip()
    user = Hold(run).read_user()
    used = f"used by {user.run_id} of {user.owner}" if user else "free"
    return f"held by {owner}, {used}"
