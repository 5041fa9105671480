"""The first process of a node: starts the agent, passes signals on, leaves nothing behind.

Fit to be PID 1 of a container. Standard library only; torch is imported by the agent's process,
which is forked from this one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path

from launcher.agent import disk, processes, signals, streams
from launcher.agent.atomic_write import write_atomically
from launcher.agent.endings import judge_node
from launcher.agent.ledger import AgentLedger, ledger_path
from launcher.agent.node.identity import claim_incarnation, identify, source_of
from launcher.agent.stopping import (
    REASON_OF_SIGNAL,
    SILENT_S,
    Step,
    Stop,
    StopFiles,
    read_stop_file,
)
from launcher.agent.worker.heartbeat import WorkerBeat, read_heartbeat
from launcher.agent.worker_exit import read_oom_kills
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.clock import SystemClock
from launcher.contract.ending import NodeOutcome, parse_node_outcome
from launcher.contract.errors import ExitCode, InputError
from launcher.contract.hold import RENEW
from launcher.contract.node_plan import NodeTask, parse_task
from launcher.contract.records import dump_record
from launcher.contract.reports.look import LOOK_FILE, LOOK_REQUEST, LookRequest, look_dir
from launcher.contract.waits import POLL_S, SLOW_LOOK_S

say = partial(streams.say, who="supervisor")

NODE_PLAN = "LAUNCHER_NODE_PLAN"
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_BLOCKED = frozenset({*REASON_OF_SIGNAL, *_PASSED_ON, signal.SIGCHLD})
SCRATCH_PREFIX = "launcher-agent-"
_OWNER = "owner"


def main(argv: list[str]) -> int:
    """Supervises the node whose plan ``argv`` or the environment names; returns the exit code."""
    # Before anything else: as PID 1 a signal without a handler would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    streams.open_streams()
    path = argv[0] if argv else os.environ.get(NODE_PLAN)
    try:
        if path is None:
            raise InputError("no node plan was given", f"name its file, or set {NODE_PLAN}")
        task = identify(parse_task(Path(path).read_text()), os.environ)
        task = claim_incarnation(task)
    except (InputError, OSError) as error:
        say(str(error))
        return int(ExitCode.DISK_FULL if disk.is_full(error) else ExitCode.BAD_INPUT)
    if task.settings.meet_dir and not task.settings.tee:
        # Whoever started this process did not know its node, and so gave it no console of its own.
        streams.write_to_file(f"{task.node.log_dir}/{protocol.CONSOLE_FILE}")
    return Supervisor(task).run()


class Supervisor:
    """One node from its start to its outcome."""

    def __init__(self, task: NodeTask) -> None:
        self._task, self._clock = task, SystemClock()
        node = task.node
        self._node_dir = Path(node.log_dir)
        self._run_dir = Path(dict(node.env).get(protocol.RUN_DIR, self._node_dir.parents[2]))
        self._files = StopFiles(self._node_dir)
        self._stop: Stop | None = None
        self._shows_life_at = float("-inf")
        self._agent_pid = 0
        self._own_scratch: Scratch | None = None
        self._outcome = NodeOutcome(
            node_index=node.node_index, incarnation=node.incarnation, cause=Cause.AGENT_FAILED
        )
        self._ledger = AgentLedger(
            ledger_path(self._run_dir, node.node_index, node.incarnation),
            self._clock,
            node_index=node.node_index,
            incarnation=node.incarnation,
        )

    def run(self) -> int:
        """Blocks until the node's work is done; returns the exit code."""
        started_at = self._clock.wall()
        try:
            self._prepare()
        except OSError as error:
            if not disk.is_full(error):
                say(f"cannot start: {error}")
                return int(ExitCode.BAD_INPUT)
            detail = f"{disk.describe(str(error), self._run_dir)}; {error}"
            self._outcome = replace(self._outcome, cause=Cause.DISK_FULL, detail=detail)
        else:
            self._outcome = self._run_agent()
        finally:
            processes.end_children()
            if self._own_scratch:
                self._own_scratch.remove()
        self._report_end(started_at)
        return self._outcome.exit_code

    def _prepare(self) -> None:
        processes.adopt_orphans()
        node = self._task.node
        # They would override the plan: an operator's values count pods, an engine's its tasks.
        of_engine = [name for name in os.environ if name.startswith(protocol.ENGINE_PREFIXES)]
        for name in (*protocol.STALE_VARIABLES, *of_engine):
            os.environ.pop(name, None)
        os.environ.update(node.env)
        # Meant for torchrun alone; a torchrun that the script starts would use it too.
        os.environ.pop(protocol.LINE_PREFIX_TEMPLATE, None)
        os.environ[protocol.NODE_INDEX] = str(node.node_index)
        self._node_dir.mkdir(parents=True, exist_ok=True)
        if checkpoint_dir := os.environ.get(protocol.CHECKPOINT_DIR):
            Path(checkpoint_dir).mkdir(parents=True, exist_ok=True)
        self._own_scratch = Scratch()
        self._scratch = self._own_scratch.path
        if node.workdir is not None:
            os.chdir(node.workdir)
        self._files.clear()
        self._ledger.write("agent-started")

    def _report_end(self, started_at: float) -> None:
        outcome = replace(self._outcome, started_at=started_at, finished_at=self._clock.wall())
        cause, code = outcome.cause.value, outcome.exit_code
        self._ledger.write("agent-ended", cause=cause, exit_code=code)
        write_outcome(self._node_dir / protocol.OUTCOME_FILE, outcome)
        if source_of(self._task).is_pod:
            write_termination(outcome, Path(protocol.TERMINATION_LOG))
        if outcome.cause is not Cause.COMPLETED:
            why = f": {outcome.summary}" if outcome.summary else ""
            say(f"{cause}{why} (exit code {code})")

    # -- the agent's process ------------------------------------------------------------------

    def _run_agent(self) -> NodeOutcome:
        # In memory: a full disk must not swallow the agent's report.
        file = os.memfd_create("outcome")
        oom_kills = read_oom_kills()
        self._agent_pid = self._fork_agent(file)
        status = self._wait_for_agent()
        # Without the agent nobody else ends the node's other processes.
        processes.end_children()
        code = os.waitstatus_to_exitcode(status)
        # Nothing if it died; both processes share the position in the file.
        os.lseek(file, 0, os.SEEK_SET)
        with open(file) as text:
            reported = parse_node_outcome(text.read())
        if reported and reported.detail == RENEW and not self._stop:
            say(f"{RENEW}: torch is imported anew")
            return self._run_agent()
        stop = self._stop.reason if self._stop else None
        killed = read_oom_kills() > oom_kills
        return judge_node(
            reported, self._outcome, code, stop, killed=killed, had_begun=self._has_begun()
        )

    def _fork_agent(self, file: int) -> int:
        supervisor_pid = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = int(ExitCode.AGENT_FAILED)
        try:
            processes.die_with_parent(supervisor_pid)
            # Ctrl-C goes to the whole process group, but only the supervisor may act on it.
            os.setpgid(0, 0)
            signals.set_agent_handlers()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            from launcher.agent.engine.run import run_agent

            outcome = run_agent(
                self._task, run_dir=self._run_dir, scratch=self._scratch, ledger=self._ledger
            )
            with open(file, "w") as text:
                text.write(outcome.to_json())
            code = outcome.exit_code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _wait_for_agent(self) -> int:
        while True:
            if (status := processes.reap().get(self._agent_pid)) is not None:
                # The signal that ended the agent may have been sent to this process too.
                self._take_signal(0.0)
                return status
            if self._stop is None and (reason := read_stop_file(os.environ)):
                self._request_stop(reason)
            self._show_life()
            self._take_signal(POLL_S if self._stop else SLOW_LOOK_S)
            if self._stop:
                self._go_on_stopping(self._stop)
                if self._stop.is_hopeless(self._clock.monotonic()):
                    say(f"the agent (pid {self._agent_pid}) outlives SIGKILL; going on without it")
                    return signal.SIGKILL

    def _show_life(self) -> None:
        now = self._clock.monotonic()
        if now >= self._shows_life_at and self._task.settings.meet_dir:
            self._shows_life_at = now + protocol.ALIVE_S
            with contextlib.suppress(OSError):
                (self._node_dir / protocol.ALIVE_FILE).touch()

    # -- signals and stopping -----------------------------------------------------------------

    def _take_signal(self, limit_s: float) -> None:
        signum, _ = processes.wait_for_signal(_BLOCKED, limit_s) or (0, 0)
        if signum in _PASSED_ON:
            for beat in self._read_beats():
                processes.send(beat.pid, signum)
        elif signum in REASON_OF_SIGNAL:
            self._request_stop(REASON_OF_SIGNAL[signal.Signals(signum)])

    def _request_stop(self, reason: Cause) -> None:
        if self._stop:
            # An engine repeats its request; a person who repeats one has lost patience.
            repeats = source_of(self._task).is_task and reason is Cause.PREEMPTED
            self._stop.times_requested += 0 if repeats else 1
            return
        grace_s = self._task.settings.stop_grace_s
        self._stop = Stop(reason=reason, requested_at=self._clock.monotonic(), grace_s=grace_s)
        now = self._clock.wall()
        self._files.write_request(reason.value, at=now, deadline=now + grace_s)
        self._ledger.write("stop-requested", reason=reason.value, grace_s=grace_s)
        self._stop.look_file = self._ask_for_look()

    def _ask_for_look(self) -> Path | None:
        """Asks the agent for a look at workers that may hang, and returns the file to wait for.

        None if a worker has beaten within ``SILENT_S``.
        """
        now, beats = self._clock.monotonic(), self._read_beats()
        if not beats or any(now - beat.at < SILENT_S for beat in beats):
            return None
        request = LookRequest(id=f"stop-{self._clock.wall():.3f}", why="stop")
        try:
            write_atomically(self._node_dir / LOOK_REQUEST, dump_record(request))
        except OSError:
            return None
        return look_dir(self._node_dir, request.id) / LOOK_FILE

    def _read_beats(self) -> list[WorkerBeat]:
        return [*filter(None, map(read_heartbeat, self._scratch.glob("heartbeat-*")))]

    def _has_begun(self) -> bool:
        """Whether this node has started workers; a held node counts, as its runs start them."""
        return self._task.settings.hold_idle_s > 0 or any(self._scratch.glob("heartbeat-*"))

    def _go_on_stopping(self, stop: Stop) -> None:
        answer = self._files.read_answer()
        step = stop.decide(
            self._clock.monotonic(),
            will_answer=self._files.training_will_answer(),
            acknowledged=answer is not None,
            has_begun=self._has_begun(),
        )
        if step is Step.KILL:
            if stop.killed_at is None:
                stop.killed_at = self._clock.monotonic()
            processes.send(self._agent_pid, signal.SIGKILL)
        elif step is Step.TERMINATE:
            if answer is not None:
                self._ledger.write("stop-acknowledged", step=answer.get("step"))
            stop.terminated_at = self._clock.monotonic()
            signals.order_end()
            processes.send(self._agent_pid, signal.SIGTERM)


def write_outcome(path: Path, outcome: NodeOutcome) -> None:
    """Replaces the node's ``outcome.json``. If that fails, only the exit code tells the cause."""
    with contextlib.suppress(OSError):
        write_atomically(path, f"{outcome.to_json(2)}\n")


def write_termination(outcome: NodeOutcome, path: Path) -> None:
    """The outcome as a pod's termination message, if there is a place for one."""
    with contextlib.suppress(OSError), path.open("r+") as file:
        file.truncate()
        file.write(outcome.to_short_json(protocol.TERMINATION_LIMIT_BYTES))


class Scratch:
    """A private folder, locked as long as its owner lives; at its end the kernel frees the lock."""

    def __init__(self, root: Path | None = None) -> None:
        """Makes the folder, and removes those of owners that were killed."""
        root = root or Path(tempfile.gettempdir())
        _sweep(root)
        self.path = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=root))
        made = self.path / f".{_OWNER}"
        try:
            self._lock = os.open(made, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            self.remove()
            raise
        # Ended by nobody: no other process knows the new file yet.
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Seen by sweeps only now that it is locked.
        made.rename(self.path / _OWNER)

    def remove(self) -> None:
        """Removes the folder; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)


def _sweep(root: Path) -> None:
    for folder in root.glob(f"{SCRATCH_PREFIX}*"):
        # Folders of other users cannot be opened; one without a lock file is just being made.
        with contextlib.suppress(OSError):
            lock = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
