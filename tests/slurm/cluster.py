"""A real Slurm cluster of three nodes on this machine: munge, slurmctld, and a slurmd for each.

Everything lies in one short folder, munge's socket and key too, so that several clusters run side
by side. No daemon is a service; each has a keeper (``keeper.py``) that kills all its processes when
this process ends, however that happens.

What differs from a real cluster, and what does not:

- The nodes share this machine's network, /dev/shm, processes and boot id.
- No accounting: there is no ``sacct``, as on sites that have no slurmdbd.
- Slurm holds a requeued job back for ``cred_expire``: 120 s unless it is set, here ``HELD_BACK_S``.
- It takes a node for lost after SlurmdTimeout: 300 s unless it is set, here ``LOST_S``, and up to
  13 s on top of it.
- ProctrackType decides whom Slurm's signals reach. Tried with scancel, ``scancel --signal`` and
  ``scontrol requeue``, with a task whose children have a group or session of their own, as the
  agent's workers have:

  | | SIGTERM and other signals | at the end of the step (SIGKILL) |
  |---|---|---|
  | cgroup, on most real clusters | the task alone | everything |
  | pgid, here | the task and others in its process group | the task's process group |
  | linuxproc | all descendants | all descendants, not those whose parent has died |

  With all three the batch script gets SIGTERM from scancel, no signal of ``scancel --signal``
  without ``--full``, and with ``--batch`` it alone gets that. pgid is the default here: signals go
  as with cgroup, and what an agent leaves behind is not cleaned up but found. Such a leftover
  holds the step's output open, and its job stays in state COMPLETING.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import psutil

from tests.waiting import LIMIT_S, wait_until

NODES = ("n1", "n2", "n3")
CPUS = 2
"""Of each node. A job that asks for this many, or for ``--exclusive``, has the node to itself."""
CLIENTS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun", "salloc", "sacct", "sprio")
HELD_BACK_S = 5
KILL_WAIT_S = 8
LOST_S = 10
LEFT_LIMIT_S = 60.0
"""From the end of a test until nothing of it may be in the queue or on a node."""
CONF = """\
ClusterName=lab
# The address behind the name: the name itself need not resolve.
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={held_back_s}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillOnBadExit=0
KillWait={kill_wait_s}
OverTimeLimit=0
InactiveLimit=0
ReturnToService=2
SlurmdTimeout={lost_s}
MessageTimeout=5
TCPTimeout=2
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
    "CPUs={cpus} RealMemory=4000 Gres=gpu:2 State=UNKNOWN\n"
)
PARTITIONS = """\
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=short Nodes=ALL DefaultTime=1 MaxTime=1 State=UP PriorityTier=1
"""
GRES = "NodeName={name} Name=gpu File={folder}/gpu[0-1]\n"
WRAPPER = """\
#!/bin/bash
printf '%s %s\\n' "$EPOCHREALTIME" "{name} $*" >>'{calls}'
exec {program} "$@"
"""


def find_free_ports(count: int) -> list[int]:
    """Below the range from which the kernel gives ports to clients."""
    ports: list[int] = []
    for port in random.sample(range(18000, 31000), 400):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError(f"no {count} free ports")


class Daemon:
    """One program under its keeper."""

    def __init__(self, *argv: str, env: dict[str, str], log: Path) -> None:
        self.argv = argv
        with log.open("ab") as file:
            self.keeper = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("keeper.py")), *argv],
                env=env,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                start_new_session=True,  # an interrupt at the terminal is for pytest
            )

    def processes(self) -> list[psutil.Process]:
        """The daemon and all that came of it."""
        try:
            return psutil.Process(self.keeper.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def alive(self) -> bool:
        return self.keeper.poll() is None

    def runs(self) -> bool:
        """Whether the program itself is there, and not only its keeper about to start it."""
        names = set()
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                names.add(process.name())
        return self.argv[0] in names

    def end(self) -> None:
        """Ends the program in good order; what it started goes on."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.cmdline() == list(self.argv):
                    process.send_signal(signal.SIGTERM)
                    process.wait(30)

    def kill(self) -> None:
        """Ends all its processes at once, as a loss of power does. Idempotent."""
        if self.keeper.stdin is not None:
            self.keeper.stdin.close()
        self.keeper.wait(30)


class Cluster:
    """Nodes ``n1`` to ``n3``, with the partitions main, high (preempts) and short (1 minute)."""

    def __init__(self, proctrack: str = "pgid", held_back_s: int = HELD_BACK_S) -> None:
        # Short: a Unix socket's path ends after 107 characters. Open: munge wants it so.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.host = socket.gethostname().split(".")[0]
        self.ports = dict(zip(("slurmctld", *NODES), find_free_ports(4), strict=True))
        self.calls_file = self.folder / "calls"
        path = f"{self.folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN"))
        }
        self.env = {**kept, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}
        self._daemons: dict[str, Daemon] = {}
        self._write(proctrack, held_back_s)

    def _write(self, proctrack: str, held_back_s: int) -> None:
        for name in ("munge", "state", "bin", *NODES):
            (self.folder / name).mkdir(mode=0o755)
        conf = CONF.format(
            host=self.host,
            ports=list(self.ports.values()),
            folder=self.folder,
            proctrack=proctrack,
            held_back_s=held_back_s,
            kill_wait_s=KILL_WAIT_S,
            lost_s=LOST_S,
        )
        for name in NODES:
            conf += NODE.format(name=name, host=self.host, port=self.ports[name], cpus=CPUS)
        (self.folder / "slurm.conf").write_text(conf + PARTITIONS)
        gres = "".join(GRES.format(name=name, folder=self.folder) for name in NODES)
        (self.folder / "gres.conf").write_text(gres)
        for index in range(2):
            # Only for Slurm's counting and its variables: there is nothing to open.
            (self.folder / f"gpu{index}").touch()
        key = self.folder / "munge/key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        self.calls_file.touch()
        for name in CLIENTS:
            # Where a client is not installed, it is not found here either.
            if program := shutil.which(name):
                wrapper = self.folder / "bin" / name
                wrapper.write_text(
                    WRAPPER.format(name=name, calls=self.calls_file, program=program)
                )
                wrapper.chmod(0o755)

    def start(self) -> None:
        self.start_munge()
        self._start("slurmctld", "slurmctld", "-D")
        for name in NODES:
            self.start_node(name)
        self.wait_ready()

    def close(self) -> None:
        """Ends every process, by its id, and removes the folder. Idempotent."""
        for daemon in self._daemons.values():
            daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, *argv: str) -> None:
        daemon = self._daemons.get(name)
        assert daemon is None or not daemon.alive(), f"{name} runs already"
        # The daemons' own calls are not the launcher's.
        env = {**self.env, "PATH": self.env["PATH"].removeprefix(f"{self.folder}/bin:")}
        daemon = Daemon(*argv, env=env, log=self.folder / f"{name}.out")
        self._daemons[name] = daemon
        wait_until(daemon.runs, f"{name} runs")

    # Nodes

    def start_node(self, name: str) -> None:
        """Also after ``kill_node``: it is idle some seconds later."""
        self._start(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """slurmd, slurmstepd, scripts and tasks, all at once. Slurm notices about 15 s later."""
        self._daemons[name].kill()

    def node_processes(self, name: str) -> list[psutil.Process]:
        """slurmd and all that runs on that node."""
        return self._daemons[name].processes()

    def node_state(self, name: str) -> str:
        """As ``sinfo`` says it: ``idle``, ``allocated``, ``down*``, ``drained`` and so on."""
        # All nodes at once: asked for one, slurmctld may answer with an allocation that is over.
        argv = ("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T")
        return dict(line.split() for line in self.ask(*argv).splitlines())[name]

    def drain(self, name: str, reason: str = "a test drains it") -> None:
        self.ask("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")

    def resume(self, name: str) -> None:
        self.ask("scontrol", "update", f"NodeName={name}", "State=RESUME")

    # The controller and munge

    def stop_controller(self) -> None:
        self._daemons["slurmctld"].end()
        self._daemons["slurmctld"].kill()

    def start_controller(self) -> None:
        """It takes up again what it knew; blocks until it answers."""
        self._start("slurmctld", "slurmctld", "-D")
        wait_until(self.answers, "slurmctld answers")

    def start_munge(self) -> None:
        folder = self.folder / "munge"
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid"}
        files |= {"log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / file}" for option, file in files.items()]
        self._start("munged", "munged", "--foreground", "--force", *options)
        wait_until((folder / "socket").exists, "munged has made its socket")

    def answers(self) -> bool:
        return subprocess.run(["scontrol", "ping"], **self._quiet()).returncode == 0

    # What a person would type

    def _quiet(self) -> dict[str, object]:
        # Past the wrappers: what tests ask is not counted.
        env = {**self.env, "PATH": self.env["PATH"].removeprefix(f"{self.folder}/bin:")}
        return {"env": env, "capture_output": True, "text": True, "check": False, "timeout": 60}

    def ask(self, *argv: str | Path) -> str:
        """A command of Slurm's that must succeed, not counted in ``calls``."""
        done = subprocess.run([str(word) for word in argv], **self._quiet())
        assert done.returncode == 0, f"{' '.join(map(str, argv))}: {done.stderr}"
        return str(done.stdout).strip()

    def submit(self, *argv: str | Path, script: str, env: dict[str, str] | None = None) -> str:
        """Submits a batch script; the job's id."""
        path = Path(tempfile.mkstemp(dir=self.folder, suffix=".sh")[1])
        path.write_text(f"#!/bin/bash\n{script}")
        quiet = self._quiet()
        quiet["env"] = {**quiet["env"], **(env or {})}  # type: ignore[dict-item]
        command = ["sbatch", "--parsable", f"--output={path}.out", *map(str, argv), str(path)]
        done = subprocess.run(command, **quiet)
        assert done.returncode == 0, done.stderr
        return str(done.stdout).strip()

    def queue(self) -> list[str]:
        """Jobs that wait, run or are being ended, each as ``ID STATE NODE-OR-REASON``."""
        return self.ask("squeue", "--noheader", "--array", "--format=%i %T %R").splitlines()

    def state(self, job: str) -> str:
        """Of a job or array element (``7_1``), in capitals; also for minutes after its end."""
        argv = ("squeue", "--noheader", "--array", "--states=all", "--jobs", job, "--format=%T")
        return self.ask(*argv)

    @property
    def calls(self) -> Counter[str]:
        """How often each client command was called with ``env``'s PATH, batch scripts included."""
        return Counter(line.split()[1] for line in self.call_lines())

    def call_lines(self) -> list[str]:
        """Each call: seconds since the epoch, the command, its arguments."""
        return self.calls_file.read_text().splitlines()

    def clear_calls(self) -> None:
        self.calls_file.write_text("")

    # Between tests

    def wait_ready(self) -> None:
        """Until three nodes are idle."""
        wait_until(self.answers, "slurmctld answers")
        try:
            wait_until(self._all_idle, "three nodes are idle")
        except AssertionError as error:
            told = (self.ask("sinfo", "--Node", "--long"), self.ask("sinfo", "--list-reasons"))
            raise AssertionError("\n".join((str(error), *told))) from None

    def _all_idle(self) -> bool:
        for name, daemon in self._daemons.items():
            log = self.folder / f"{name}.out"
            assert daemon.alive(), f"{name} has ended: {log.read_text()[-2000:]}"
        return all(self.node_state(name) == "idle" for name in NODES)

    def wait_idle(self, limit_s: float = LIMIT_S) -> None:
        """Until nothing is queued, and nothing but slurmd runs on a node."""
        wait_until(lambda: not self.queue(), "the queue is empty", limit_s=limit_s)
        wait_until(lambda: not self.left(), "nothing runs on a node", limit_s=limit_s)

    def left(self) -> list[str]:
        """Processes on nodes that are not slurmd."""
        found = []
        for name in NODES:
            for process in self.node_processes(name):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name() != "slurmd":
                        found.append(f"{name}: {process.pid} {' '.join(process.cmdline())}")
        return found

    def mend(self) -> list[str]:
        """Makes the cluster as new; what was left in the queue or on nodes."""
        for name, start in (("munged", self.start_munge), ("slurmctld", self.start_controller)):
            if not self._daemons[name].alive():
                start()
        left = []
        try:
            self.wait_idle(LEFT_LIMIT_S)
        except AssertionError:
            left = self.queue() + self.left()
            self.ask("scancel", "--user=root")
            with contextlib.suppress(AssertionError):
                self.wait_idle(KILL_WAIT_S + 10)
        for name in NODES:
            if self.node_processes(name) and self.left():
                self.kill_node(name)
            if not self._daemons[name].alive():
                self.start_node(name)
            if "drain" in self.node_state(name):
                self.resume(name)
        self.wait_ready()
        self.clear_calls()
        return left
