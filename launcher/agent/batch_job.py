"""``python agent.pyz job OPTIONS srun ...``: the first process of a Slurm job. It starts the nodes,
and decides the exit code and whether the job is requeued.

With a container it runs outside of it, where Slurm's commands are: in any Python from 3.6 on, and
with the standard library alone. What it relies on was measured:
docs/decisions/0023-the-batch-script-of-slurm.md. Its files: ``targets.slurm.settings``.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Tuple

STOP_FILE, DISK_FULL = "LAUNCHER_STOP_FILE", 198
PREEMPTED, STOP_REQUESTED, INTERRUPTED = "preempted", "stop-requested", "interrupted"
STOPPED, UNREACHABLE = 143, 3
STARTS_AGAIN = "launcher: the job starts again"
"""As ``contract`` has them, which such Pythons cannot read."""
OVER, REQUEUED, FAULT = "over", "requeued", "fault"
SRUN_SLACK_S = 20
"""How long srun may outlive its agents, or the grace of a stop; less than NOTICE_MARGIN_S."""
POLL_S = 5.0
"""How often the run's folder is read for agents that have ended while srun goes on."""
TRIES = 30
"""How many times a controller that does not answer is asked to start the nodes, or to requeue."""
TRY_S = 20
"""Seconds between two of these tries."""
AWAY = "ontact|onnect|imed out"
"""Found in the output of Slurm's commands when the controller does not answer."""
NOT_STARTED = re.compile(f"Unable to (?:confirm|create) .*(?:{AWAY})".encode())
"""What srun prints if the controller does not answer before any node has started."""
STDERR_BYTES = 4000
"""How much of the end of srun's stderr is kept."""
SIGNALS = frozenset((signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD))
OUTER = (
    *("SRUN_", "SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_GPU_BIND", "SLURM_STEP"),
    *("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK", "SLURM_EXACT"),
    *("SLURM_RELATIVE", "SLURM_LABELIO", "SLURM_HOSTFILE", "SLURM_OVERCOMMIT", "SLURM_MPI_TYPE"),
    *("PMI_", "PMIX_", "OMPI_COMM_WORLD_"),
)
"""How variables of an outer job begin, and options that srun would take from the environment."""


# -- what is decided: pure -------------------------------------------------------------------------


def fold_codes(agents: List[int], srun: int) -> int:
    """The exit code of a start, from those of its agents that left one, else from srun's.

    A failed training counts first; then any agent that saw the training's end, since srun and the
    others fail where a node is lost.
    """
    failed = [code for code in agents if 0 < code < 128]
    return failed[-1] if failed else 0 if 0 in agents else max([*agents] or [srun])


def decide_next(
    code: int, stop_reason: str, is_signalled: bool, description: Optional[str], restarts: int
) -> str:
    """What happens to the job: ``over``, with the reason if Slurm ended it; ``requeued``, if Slurm
    has done it already; or why it has to be requeued: a ``fault`` of the platform, or
    ``preempted``.

    ``stop_reason`` is why the agents were asked to stop, empty if they were not. ``is_signalled``:
    Slurm has ended this start. ``description`` is then what ``scontrol show job`` printed, or None
    if the controller is away.
    """
    # After a full disk too: the next start would find it as full.
    if code < 128 or code == DISK_FULL:
        return OVER
    if is_signalled:
        if description is None:
            return REQUEUED  # The queue tells what is true.
        restarts_shown = re.search(r" Restarts=([0-9]+)", description)
        if restarts_shown and int(restarts_shown.group(1)) > restarts:
            return REQUEUED
        if " Reason=TimeLimit " not in description:
            # A requeue would bring back what scancel ended.
            is_preempted = re.search(r" PreemptTime=[0-9]", description)
            return f"{OVER} {PREEMPTED if is_preempted else STOP_REQUESTED}"
        stop_reason = stop_reason or PREEMPTED
    return {"": FAULT, PREEMPTED: PREEMPTED}.get(stop_reason, OVER)


# -- one start of a job --------------------------------------------------------------------------


class BatchJob:
    """One start of a job, or of an element of an array."""

    def __init__(self, options: argparse.Namespace, environ: Dict[str, str]) -> None:
        self.options, self.run, self.files = options, options.run, options.run / "slurm"
        self.element, self.id = "", environ["SLURM_JOB_ID"]
        if options.array:
            # Not SLURM_JOB_ID: one element has the array's, and requeueing it ends all others.
            self.element = environ["SLURM_ARRAY_TASK_ID"]
            self.id = "{}_{}".format(environ["SLURM_ARRAY_JOB_ID"], self.element)
        self.restarts = int(environ.get("SLURM_RESTART_COUNT") or 0)
        self.key = f"{self.id}.{self.restarts}"
        self.stop = self.files / f"{self.key}.stop"
        self.started = self.files / f"{self.key}.started"
        self.nodes, self.listed = int(environ["SLURM_JOB_NUM_NODES"]), environ["SLURM_JOB_NODELIST"]
        self.env = {k: v for k, v in environ.items() if not k.startswith(OUTER)}
        self.env[STOP_FILE] = str(self.stop)
        self.is_signalled, self.stderr_tail = False, b""

    def each(self, kind: str) -> List[Path]:
        """The files of this kind of all starts of the run, or of its node in all arrays."""
        of_node = f"_{self.element}.*" if self.element else ""
        return [*self.files.glob(f"[0-9]*{of_node}.{kind}")]

    def write_own(self, kind: str, text: str) -> None:
        """Writes a file of this start. It overwrites the file that ``prepare`` has made for it, so
        that it can be written when the disk is full."""
        temporary = self.files / f".{self.key}.{kind}"
        with contextlib.suppress(OSError):
            file = os.open(str(temporary), os.O_WRONLY | os.O_CREAT, 0o666)
            os.write(file, f"{text}\n".encode())
            os.close(file)
            temporary.replace(self.files / f"{self.key}.{kind}")

    def write_once(self, path: Path, text: str, mode: int = 0o666) -> None:
        """Writes a file of the run, unless it is there. Of elements that start at the same time,
        the first one's file stays. Raises ``OSError``."""
        if not read_file(path):
            temporary = self.files / f".{self.key}.new"
            with open(os.open(str(temporary), os.O_WRONLY | os.O_CREAT, mode), "w") as file:
                file.write(text)
            try:
                os.link(str(temporary), str(path))
            except FileExistsError:
                pass
            except OSError:  # A file system without links.
                shutil.copy(str(temporary), str(path))
            temporary.unlink()

    def prepare(self, task: str) -> None:
        """Makes what the nodes and the launcher need. Raises ``OSError``."""
        for folder in (self.files, self.options.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        # Empty until somebody asks: on NFS, nodes may see a new file a minute late.
        self.stop.open("a").close()
        # Takes the space for the last word now: later the disk may be full.
        with contextlib.suppress(OSError):
            (self.files / f".{self.key}.ended").write_text(f"{'':60}\n")
        _, hosts = run_command("scontrol", "show", "hostnames", self.listed)
        self.write_own("started", " ".join(hosts.split()))
        self.write_once(self.files / "node-plan.json", task)
        self.write_once(self.run / "artifact.sh", self.options.script.read_text())
        self.write_once(self.run / "token", os.urandom(32).hex(), 0o600)

    def unpack(self) -> str:
        """Unpacks the code, whole or not at all; returns the error. Elements do it all at once."""
        archive, folder = self.run / "code.tar.gz", self.files / f".{self.key}.code"
        if not self.options.code or (self.run / "code").is_dir():
            return ""
        if not archive.exists():
            return f"no {archive}, made with: {self.options.code}"
        folder.mkdir(exist_ok=True)
        failed, output = run_command(
            "tar", "-xzf", str(archive), "--no-same-owner", "-C", str(folder)
        )
        with contextlib.suppress(OSError):
            if not failed:
                folder.rename(self.run / "code")
        shutil.rmtree(str(folder), ignore_errors=True)
        return "" if (self.run / "code").is_dir() else f"cannot unpack {archive}: {output}"

    def refuse(self) -> Optional[int]:
        """The exit code of a start that has nothing to do; None if the nodes are to be started."""
        stop_reasons = {read_file(path) for path in self.files.glob(f"{self.id}.*.stop")}
        if stop_reasons & {STOP_REQUESTED, INTERRUPTED}:
            return STOPPED
        if self.element:
            last_words = {read_file(path) for path in self.files.glob("[0-9]*.ended")}
            over = last_words & {"0 over", "1 over"}
            if over:
                say("the run is over")
                return int(max(over)[0])
        return self.end_idle() if self.idle() > 1 + max(2, self.options.max_requeues) else None

    def idle(self) -> int:
        """How many starts there were since the last file below CHECKPOINT_DIR."""
        newest = float("-inf")
        for folder, folders, files in os.walk(str(self.options.checkpoints)):
            # Each membership leaves a file there.
            folders[:] = [name for name in folders if name != "generations"]
            newest = max([newest, *(changed_at(Path(folder, name)) for name in files)])
        return sum(changed_at(path) >= newest for path in self.each("started"))

    def end_idle(self) -> int:
        """Says that the starts get nowhere; returns the exit code, which is permanent."""
        why = f"{self.idle()} starts in a row left nothing new in {self.options.checkpoints}"
        say(f"error: {why}; fix: save there, or raise slurm.time")
        return 1

    # -- the nodes ---------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Asks the agents to stop, unless somebody has; on a full disk nobody is asked."""
        if not read_file(self.stop):
            with contextlib.suppress(OSError):
                self.stop.write_text(f"{PREEMPTED}\n")

    def read_exit_codes(self) -> List[int]:
        """The exit codes of this start's agents, from the outcomes that they leave."""
        began, codes = changed_at(self.started), []
        for path in (self.run / "nodes").glob(f"{self.element or '*'}/*/outcome.json"):
            if changed_at(path) > began:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    codes.append(int(json.loads(read_file(path))["exit_code"]))
        return codes

    def run_nodes(self) -> int:
        """Starts the nodes, and waits for them; returns the exit code of this start."""
        if self.options.early:
            self.ask_to_stop()
        for number in range(1, TRIES + 1):
            try:
                code = self.wait(self.start_srun())
            except OSError as error:
                say(f"error: {error}")
                return 127
            if not NOT_STARTED.search(self.stderr_tail):
                return fold_codes(self.read_exit_codes(), code if code >= 0 else 128 - code)
            say(f"Slurm's controller is away: no node was started, try {number} of {TRIES}")
            if self.is_asked_within(TRY_S):
                return STOPPED
        say("error: no node could be started; fix: scontrol ping; ask an admin")
        return UNREACHABLE

    def start_srun(self) -> "subprocess.Popen[bytes]":
        """Starts the nodes; srun's stderr can be read without waiting. Raises ``OSError``."""
        srun = subprocess.Popen(
            self.options.srun,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS) and None,
        )
        self.stderr_tail = b""
        os.set_blocking(srun.stderr.fileno(), False)  # type: ignore[union-attr]
        return srun

    def wait(self, srun: "subprocess.Popen[bytes]") -> int:
        """Waits for srun; ends one that hangs, or that waits for Slurm to notice a lost node."""
        poll_at = stop_asked_at = agents_over_at = 0.0
        while srun.poll() is None:
            self.take_signal(1.0)
            self.copy_stderr(srun)
            now = time.monotonic()
            if now < poll_at:
                continue
            poll_at = now + POLL_S + self.nodes // 20  # A poll reads the folders of all nodes.
            stop_asked_at = stop_asked_at or (now if read_file(self.stop) else 0.0)
            has_waited = bool(stop_asked_at) and now - stop_asked_at >= self.options.grace
            if has_waited or len(self.read_exit_codes()) >= self.nodes:
                agents_over_at = agents_over_at or now
            if agents_over_at and now - agents_over_at >= SRUN_SLACK_S:
                say("srun goes on without its agents: killed")
                srun.kill()
        self.copy_stderr(srun)
        # Ended by SIGKILL, sent in the loop above, or it has ended.
        return srun.wait()

    def take_signal(self, limit_s: float) -> None:
        """Waits for a signal for ``limit_s`` seconds at most, and notes what it asks for."""
        info = signal.sigtimedwait(SIGNALS, limit_s)
        signum = info and info.si_signo
        if signum == signal.SIGUSR1:
            self.ask_to_stop()
        self.is_signalled |= signum == signal.SIGTERM

    def copy_stderr(self, srun: "subprocess.Popen[bytes]") -> None:
        """Copies srun's new stderr to this process's own, and keeps the end of it."""
        new = srun.stderr.read() or b""  # type: ignore[union-attr]
        self.stderr_tail = (self.stderr_tail + new)[-STDERR_BYTES:]
        with contextlib.suppress(OSError):
            sys.stderr.buffer.write(new)
            sys.stderr.buffer.flush()

    def is_asked_within(self, limit_s: float) -> bool:
        """Waits for ``limit_s`` seconds, or less if this start is asked to end; returns whether it
        is."""
        end = time.monotonic() + limit_s
        while not self.is_signalled and not read_file(self.stop) and time.monotonic() < end:
            self.take_signal(min(1.0, limit_s))
        return self.is_signalled or bool(read_file(self.stop))

    # -- whether the job comes back ----------------------------------------------------------------

    def come_back(self, code: int) -> Tuple[int, str]:
        """Requeues the job where that may help; returns the exit code and the last words."""
        description = None
        # SIGTERM may have come while the folder was read, after srun had ended.
        self.is_signalled |= signal.SIGTERM in signal.sigpending()
        if self.is_signalled and code >= 128:
            failed, output = run_command("scontrol", "show", "job", "-o", self.id)
            description = None if failed else output
        decision = decide_next(
            code, read_file(self.stop), self.is_signalled, description, self.restarts
        )
        if not self.options.requeue and not decision.startswith(OVER):
            return code, f"{OVER} {PREEMPTED}" if decision == PREEMPTED else OVER
        if decision == FAULT:
            self.write_own(FAULT, str(code))
            faults = len(self.each(FAULT))
            if faults > self.options.max_requeues:
                say(f"error: {faults} faults of the platform")
                return code, OVER
        if decision == PREEMPTED:
            self.ask_to_stop()  # Says so also of a limit that came without a notice.
            if self.idle() >= 2:
                return self.end_idle(), OVER
        return code, self.requeue() if decision in (FAULT, PREEMPTED) else decision

    def requeue(self) -> str:
        """Requeues the job, or submits another where Slurm refuses; ``over`` if both fail. Blocks
        for ``TRIES`` times ``TRY_S`` if the controller is away."""
        for _ in range(TRIES):
            # A requeue ends all processes of this start with SIGTERM, which is blocked here and in
            # the command.
            failed, output = run_command("scontrol", "requeue", self.id)
            if not failed or "pending execution" in output:
                return REQUEUED
            if not re.search(AWAY, output):
                say(f"{output}; another job follows instead")
                if self.submit():
                    return REQUEUED
                break
            say(output)
            time.sleep(TRY_S)
        say(f"error: the job could not be requeued; fix: sbatch {self.run}/artifact.sh")
        return OVER

    def submit(self) -> bool:
        """Submits the batch script again, to start once this job has ended."""
        options = [f"--dependency=afterany:{self.id}"]
        options += [f"--array={self.element}"] if self.element else []
        failed, output = run_command("sbatch", "--parsable", *options, f"{self.run}/artifact.sh")
        if not failed:
            job = output.splitlines()[-1].split(";")[0]
            (self.files / f"{job}.job").touch()
        return not failed


def run_command(*argv: str) -> Tuple[bool, str]:
    """Whether a command failed, and its output."""
    try:
        # Ended by Slurm's own limit for a message to its controller.
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        return True, str(error)
    return done.returncode != 0, done.stdout.decode(errors="replace").strip()


def read_file(path: Path) -> str:
    """A file's text; empty if there is none."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def changed_at(path: Path) -> float:
    """In seconds since the epoch; minus infinity if there is no such file."""
    with contextlib.suppress(OSError):
        return path.lstat().st_mtime
    return float("-inf")


def say(text: str) -> None:
    sys.stdout.write(f"launcher: {text}\n")
    sys.stdout.flush()


def read_options(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agent.pyz job")
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument("--checkpoints", type=Path, required=True, help="CHECKPOINT_DIR")
    parser.add_argument("--script", type=Path, required=True, help="the batch script")
    parser.add_argument("--code", help="what makes code.tar.gz, which is to be unpacked")
    parser.add_argument("--grace", type=int, required=True, help="seconds for a stop")
    parser.add_argument("--requeue", action="store_true", help="bring the job back")
    parser.add_argument("--max-requeues", type=int, required=True, help="after so many faults")
    parser.add_argument("--array", action="store_true", help="each element is a node")
    parser.add_argument("--early", action="store_true", help="the end of its time is near")
    parser.add_argument("srun", nargs=argparse.REMAINDER, help="starts an agent on each node")
    return parser.parse_args(argv)


def main(argv: List[str]) -> int:
    """Returns the exit code. The standard input is the task of all nodes, a ``NodeTask``."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    job, code, word = BatchJob(read_options(argv), dict(os.environ)), 2, OVER
    if job.restarts:
        print(STARTS_AGAIN, flush=True)
    try:
        job.prepare(sys.stdin.read())
        refused, unpack_error = job.refuse(), job.unpack()
        if refused is not None:
            code = refused
        elif unpack_error:
            say(f"error: {unpack_error}")
        else:
            code, word = job.come_back(job.run_nodes())
    except OSError as error:
        say(f"error: {error}")
    finally:
        job.write_own("ended", f"{code} {word}")
    return code
