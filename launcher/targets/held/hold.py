"""A hold, seen from the launcher: who uses its nodes, whether they are ready, and what a job may
not ask of them."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from launcher.agent import disk
from launcher.contract import protocol, typed
from launcher.contract.causes import Cause
from launcher.contract.errors import InputError, KeyInputError, TargetError
from launcher.contract.hold import OWNER_FILE, Ready, User
from launcher.contract.node_plan import Mount, NodePlan
from launcher.contract.records import dump_record, parse_record
from launcher.follow.requests import is_stop_requested
from launcher.follow.target import ScriptArtifact
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.nnodes import NodesThere
from launcher.plan.nodes import absolute
from launcher.runs.folder import RunFolder, full_disk
from launcher.targets.held.child import TAKEN_LIMIT_S, find_held
from launcher.targets.room import load

if TYPE_CHECKING:
    from launcher.follow.target import Target
    from launcher.job.spec import JobSpec

POLL_S = 0.01
"""Between two tries to enter a hold that was just left."""
TRIES = 200
READY_POLL_S = 0.05
"""Between two looks whether the nodes take runs."""
TOUCH_S = 1.0
"""The least time between two signs of life of the run's launcher."""


class Hold:
    """The nodes of a hold, for one run at a time. ``fresh``: runs get new interpreters."""

    def __init__(self, run: RunFolder, *, fresh: bool = False) -> None:
        self.run, self.fresh = run, fresh
        self._user = run.path / protocol.HOLD_USER
        self._file: IO[str] | None = None
        self._touched_at = float("-inf")

    @property
    def plan(self) -> LaunchPlan:
        """The hold's plan as it is now: lost nodes are replaced."""
        return self.run.read_plan()

    @property
    def there(self) -> NodesThere:
        """The hold's nodes, for a job that runs on all of them or on some."""
        plan, count = self.plan, len(self.plan.nodes)
        return NodesThere(
            count=count,
            says=f"the hold {plan.job_name} has {count}",
            fix=f"--nnodes {count}, or a larger hold",
            gives=(
                ("nproc_per_node", plan.nproc_per_node),
                ("start", "fresh" if self.fresh else "fork"),
            ),
        )

    @property
    def python(self) -> str:
        """The Python of this machine that runs its nodes; empty if they run another, or left."""
        with contextlib.suppress(InputError):
            return settings.own_python if (settings := self.plan.own) else ""
        return ""

    def read_user(self) -> User | None:
        """Who uses the hold; None if it is free."""
        with contextlib.suppress(OSError, ValueError), self._user.open() as file:
            user = parse_record(User, json.load(file))
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return user
        return None

    def enter(self, run_id: str) -> None:
        """Takes the hold for a run. Raises ``InputError`` naming its user, or ``DiskFullError``.

        The lock lasts until ``leave``, or the end of this process and all forked from it.
        """
        if self._file is not None:
            return
        file, user = self._open_user(), None
        for _ in range(TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                me = User(run_id=run_id, owner=f"{getpass.getuser()}@{socket.gethostname()}")
                self._file = file
                self._write(dump_record(me))
                return
            if (user := self.read_user()) is not None:
                break
            # Soon over: a user that has the lock writes its name at once, and a reader unlocks.
            time.sleep(POLL_S)
        file.close()
        who = f"{user.run_id} of {user.owner}" if user else "another run"
        fix = f"wait for it, or end it: {typed.command('stop', user.run_id)}" if user else "retry"
        raise InputError(f"{self.plan.job_name} is in use: {who} runs there", fix)

    def _open_user(self) -> IO[str]:
        try:
            return os.fdopen(os.open(self._user, os.O_RDWR | os.O_CREAT, 0o644), "r+")
        except OSError as error:
            what = f"{self.plan.job_name} cannot be used: {self._user}: {error.strerror}"
            raise InputError(what, typed.command("hold", "--name", "NAME")) from error

    def _write(self, text: str) -> None:
        assert self._file is not None
        try:
            os.ftruncate(self._file.fileno(), 0)
            # Unbuffered: a full disk must fail this write, not a later flush.
            os.pwrite(self._file.fileno(), text.encode(), 0)
        except OSError as error:
            if disk.is_full(error):
                raise full_disk(self.run.path) from error
            raise

    def touch(self) -> None:
        """Shows that the run's launcher lives, at most every ``TOUCH_S``."""
        now = time.monotonic()
        if self._file is not None and now - self._touched_at > TOUCH_S:
            self._touched_at = now
            with contextlib.suppress(OSError):
                os.utime(self._file.fileno())

    def leave(self) -> None:
        """Frees the hold, if this process has it."""
        if self._file is not None:
            self._write("")
            # Explicitly: a parent of this process may still have the file open.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None

    def tell_ended(self) -> str:
        """That the hold has ended or is about to, and why; empty while it goes on."""
        cause = Cause.STOP_REQUESTED if is_stop_requested(self.run) else None
        if (outcome := self.run.read_outcome()) is not None:
            cause = outcome.cause
        elif self.python and self.run.launcher_death():
            # Processes of this machine end with their launcher; other nodes wait for runs.
            cause = Cause.LAUNCHER_LOST
        return f"the hold {self.plan.job_name} has ended ({cause})" if cause else ""

    # -- its nodes, by files of its run folder ----------------------------------------------------

    def read_ready(self, index: int) -> Ready | None:
        """What a node says of itself once it takes runs; None before."""
        with contextlib.suppress(OSError, ValueError):
            path = find_held(self.run.path, index) / protocol.HOLD_READY
            return parse_record(Ready, json.loads(path.read_text()))
        return None

    def wait_ready(self, limit_s: float = TAKEN_LIMIT_S) -> list[Ready]:
        """Waits until all nodes take runs. Raises ``TargetError`` if one does not."""
        end = time.monotonic() + limit_s
        while None in (answers := [self.read_ready(n.node_index) for n in self.plan.nodes]):
            if (outcome := self.run.read_outcome()) is not None:
                what = f"{self.run.run_id} has ended ({outcome.cause}): {outcome.detail}"
                raise TargetError(what, typed.command("logs", "-v", self.run.run_id))
            if time.monotonic() > end:
                what = f"node {answers.index(None)} of {self.plan.job_name} does not come up"
                raise TargetError(what, typed.command("status", self.run.run_id))
            time.sleep(READY_POLL_S)
        return [ready for ready in answers if ready]


def in_hold(folder: Path, target: Target, *, fresh: bool = False) -> Target:
    """The target of runs in a hold of ``target``; ``folder`` is the hold's run folder."""
    hold = Hold(RunFolder(folder), fresh=fresh)
    held: Target = load(target.traits.held_by)(hold, target)
    return held


def render_run(plan: LaunchPlan) -> ScriptArtifact:
    """What is recorded of a run in a hold in place of a script that would start it."""
    text = f"# Nodes of {plan.hold} fork this run: nothing is started by hand.\n"
    return ScriptArtifact(render=lambda _: text)


def ids_in(held: LaunchPlan, node: NodePlan) -> tuple[str, ...]:
    """The GPUs of a held node, as it counts them: a container from 0."""
    ids = node.device_ids
    return ids if held.image is None else tuple(map(str, range(len(ids))))


def check_reach(job: JobSpec, held: LaunchPlan, root: str, cwd: str) -> None:
    """Raises ``KeyInputError`` if the job needs something that a hold's containers lack."""
    if held.image is None:
        return
    check_contained(job, held, cwd)
    name, mounts = held.job_name, held.nodes[0].mounts
    fix = f"{typed.command('stop', name)}, then hold this job"
    folder = PurePosixPath(absolute(job.checkpoint_dir or root, cwd))
    same = (m.source for m in mounts if m == Mount(source=m.source, target=m.source))
    if not any(folder.is_relative_to(path) for path in same):
        raise KeyInputError(("checkpoint_dir",), f"{name} has not mounted {folder}", fix)


def check_contained(job: JobSpec, held: LaunchPlan, cwd: str) -> None:
    """Raises ``KeyInputError`` if the containers of a hold lack the job's image or mounts."""
    name, mounts = held.job_name, held.nodes[0].mounts
    fix = f"{typed.command('stop', name)}, then hold this job"
    if job.image not in (None, held.image):
        raise KeyInputError(("image",), f"{job.image}, but {name} holds {held.image}", fix)
    for index, m in enumerate(job.mounts):
        source = absolute(m.source, cwd)
        if Mount(source=source, target=m.target, read_only=m.read_only) not in mounts:
            raise KeyInputError(("mounts", index), f"{name} has not mounted {source}", fix)


def refuse_hold(run: RunFolder, plan: LaunchPlan, *words: str) -> None:
    """Raises ``InputError`` for a hold: only the run in it has workers. ``words`` are for that."""
    if plan.is_hold:
        user = Hold(run).read_user()
        what = f"{run.run_id} is a hold and has no workers: {describe_hold(run)}"
        again = typed.command("run", "--in", plan.job_name, "SCRIPT")
        raise InputError(what, typed.command(*words, user.run_id) if user else again)


def describe_hold(run: RunFolder) -> str:
    """Who holds it, and who uses it, in words."""
    owner = "somebody"
    with contextlib.suppress(OSError):
        owner = (run.path / OWNER_FILE).read_text().strip()
    user = Hold(run).read_user()
    used = f"used by {user.run_id} of {user.owner}" if user else "free"
    return f"held by {owner}, {used}"
