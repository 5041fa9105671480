"""A hold, seen from the launcher: nodes that wait, and whoever uses them."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import typed
from launcher.contract.errors import InputError, TargetError
from launcher.contract.hold import (
    LEASE_S,
    OWNER_FILE,
    READY_FILE,
    START_REQUEST,
    USER_FILE,
    StartRun,
    User,
)
from launcher.contract.keeper_record import RECORD
from launcher.contract.records import dump_record, parse_record, read_object
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.nnodes import NodesThere
from launcher.runs.folder import RunFolder, write_atomically

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

TAKEN_LIMIT_S = 20.0
"""How long a node may take to begin: where packages have changed it imports torch first."""
POLL_S = 0.01


class Hold:
    """The nodes of a hold, for one run at a time. ``fresh``: with new interpreters."""

    def __init__(self, run: RunFolder, *, fresh: bool = False) -> None:
        self.run, self.fresh = run, fresh
        self._user = run.path / USER_FILE
        self._is_mine = False
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
        with contextlib.suppress(OSError, ValueError):
            if time.time() - self._user.stat().st_mtime < LEASE_S:
                return parse_record(User, read_object(self._user))
        return None

    def enter(self, run_id: str) -> None:
        """Takes it for a run. Raises ``InputError`` naming the run that has it."""
        if (user := self.read_user()) is not None and user.run_id != run_id:
            self._refuse(user)
        if not self._is_mine:
            with contextlib.suppress(FileNotFoundError):
                if self.read_user() is None:
                    self._user.unlink()
            own = User(run_id=run_id, owner=f"{getpass.getuser()}@{socket.gethostname()}")
            try:
                with self._user.open("x") as file:
                    file.write(dump_record(own))
            except FileExistsError:
                if (user := self.read_user()) is None or user.run_id != run_id:
                    self._refuse(user)
        self._is_mine = True

    def _refuse(self, user: User | None) -> None:
        name = self.plan.job_name
        who = f"{user.run_id} of {user.owner}" if user else "another run"
        fix = f"wait for it, or end it: {typed.command('stop', user.run_id)}" if user else "again"
        raise InputError(f"{name} is in use: {who} runs there", fix)

    def touch(self) -> None:
        """Shows that the run's launcher lives; cheap."""
        now = time.monotonic()
        if self._is_mine and now - self._touched_at > 1.0:
            self._touched_at = now
            with contextlib.suppress(OSError):
                os.utime(self._user)

    def leave(self) -> None:
        """Frees it, if this process has it."""
        if self._is_mine:
            self._is_mine = False
            self._user.unlink(missing_ok=True)

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
