"""States of a node and of a run, and every cause why a worker, a node or a run ended, in one list:
its exit code, whose fault it is, its meaning and its fix.

Agent, command line, renderers and docs read the same table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.contract import typed
from launcher.contract.errors import ExitCode


class NodeState(enum.Enum):
    """One node at an instant, as its target reports it."""

    PENDING = "pending"
    RUNNING = "running"
    EXITED = "exited"
    MISSING = "missing"
    """The target does not know it: never started, or removed by someone else."""


class RunState(enum.StrEnum):
    """A run, as ``launcher status`` shows it; a run whose launcher is gone is called orphaned."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


OVER = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})
"""States of a run that has ended."""

_DONE, _FAILS, _STOPS = RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED
_FAILED, _INPUT, _LOST = "training-failed", "bad-input", "node-lost"
_UNMET, _TARGET, _MEMORY = "rendezvous-unreachable", "target-unreachable", "out-of-memory"
_STOPPED, _PREEMPTED, _CLOSED = "stop-requested", "preempted", "rendezvous-closed"

RETRY_FROM = 128
"""The lowest exit code that is worth a retry, as Kubernetes' policy ``ExitCode`` has it."""


class RunEnd(NamedTuple):
    """The meaning of a cause by which a run can end. ``whose``: user, platform or training."""

    state: RunState
    exit_code: ExitCode
    whose: str
    meaning: str
    fix: str = ""


class Of(NamedTuple):
    """A finer cause, and the one that it stands for."""

    cause: str
    fix: str = ""
    meaning: str = ""


class Cause(enum.StrEnum):
    """Why something ended; records and messages have its value."""

    _means: RunEnd | Of

    # fmt: off
    # what a run can end by
    COMPLETED = "completed", RunEnd(
        _DONE, ExitCode.OK, "", "all workers ended with exit code 0")
    TRAINING_FAILED = "training-failed", RunEnd(
        _FAILS, ExitCode.TRAINING_FAILED, "training", "a worker failed, and no restart was allowed")
    RESTARTS_EXHAUSTED = "restarts-exhausted", RunEnd(
        _FAILS, ExitCode.TRAINING_FAILED, "training",
        "workers failed more often than `max_restarts`, or always alike")
    NODE_LOST = "node-lost", RunEnd(
        _FAILS, ExitCode.KILLED, "platform",
        "a node was lost, and the job could neither replace it nor do without it",
        fix="look at its power, kernel log and network; --resume RUN")
    OUT_OF_MEMORY = "out-of-memory", RunEnd(
        _FAILS, ExitCode.TRAINING_FAILED, "training",
        "the kernel or the container's limit killed a worker for its memory")
    BAD_INPUT = "bad-input", RunEnd(
        _FAILS, ExitCode.BAD_INPUT, "user",
        "what was given is wrong; nothing was started, or a program cannot start")
    TARGET_UNREACHABLE = "target-unreachable", RunEnd(
        _FAILS, ExitCode.TARGET_UNREACHABLE, "platform",
        "the target does not answer, or lacks what the job needs",
        fix="start the service, or correct its address")
    INTERRUPTED = "interrupted", RunEnd(
        _STOPS, ExitCode.INTERRUPTED, "user", "Ctrl-C or a closed terminal at the launcher")
    STOP_REQUESTED = "stop-requested", RunEnd(
        _STOPS, ExitCode.PREEMPTED, "user", "`launcher stop`, or SIGTERM at the launcher")
    PREEMPTED = "preempted", RunEnd(
        _STOPS, ExitCode.PREEMPTED, "platform", "the platform asked the node to end",
        fix="run it again, with --resume RUN")
    KILLED = "killed", RunEnd(
        _STOPS, ExitCode.KILLED, "platform", "a process was killed from outside",
        fix="find who sent it: a service, a person, or dmesg -T")
    LAUNCHER_LOST = "launcher-lost", RunEnd(
        _STOPS, ExitCode.KILLED, "platform",
        "the launcher of the run died; a later command found the end",
        fix="run it again, with --resume RUN; --detach outlives the terminal")
    RENDEZVOUS_UNREACHABLE = "rendezvous-unreachable", RunEnd(
        _FAILS, ExitCode.RENDEZVOUS_UNREACHABLE, "platform",
        "no coordinator answered, or too few nodes came in time")
    RENDEZVOUS_CLOSED = "rendezvous-closed", RunEnd(
        _FAILS, ExitCode.RENDEZVOUS_CLOSED, "platform",
        "another node ended the run, and its outcome says why")
    STORE_LOST = "store-lost", RunEnd(
        _FAILS, ExitCode.STORE_LOST, "platform",
        "the coordinator was lost, and no other node took over")
    AGENT_FAILED = "agent-failed", RunEnd(
        _FAILS, ExitCode.AGENT_FAILED, "platform", "the agent itself broke down")
    GPU_BUSY = "gpu-busy", RunEnd(
        _FAILS, ExitCode.GPU_BUSY, "platform", "the GPU memory of dead workers did not become free",
        fix="nvidia-smi tells who holds it; end that process")
    DISK_FULL = "disk-full", RunEnd(
        _FAILS, ExitCode.DISK_FULL, "platform",
        "a disk that the training or the agent writes to is full",
        fix="df -h; df -i; make room, or use another disk")

    # why workers were started again, or ended
    WORKER_FAULT = "worker-fault", Of(_FAILED, meaning="a worker failed by itself")
    HANG = "hang", Of(_FAILED, meaning="a worker made no step for longer than the limit")
    LOST_PEER = "lost-peer", Of(_CLOSED, meaning="all workers that failed blame another one")
    MEMBERSHIP = "membership", Of(_CLOSED, meaning="nodes came or went")
    TERMINATED = "terminated", Of(
        _CLOSED, meaning="its agent ended it: another one had failed, or nodes came or went")

    # the script
    SCRIPT_ERROR = "script-error", Of(
        _FAILED, "correct that line; if none is named, look for exit()")
    WRONG_ARGUMENT = "wrong-argument", Of(
        _INPUT, "correct the option; the program's --help lists them")
    MISSING_MODULE = "missing-module", Of(
        _INPUT, "python -m pip install PACKAGE where the workers run")
    MISSING_FILE = "missing-file", Of(_INPUT, "name a path that every node has, or mount it")
    PERMISSION = "permission", Of(
        _INPUT, "namei -l FILE shows the owner; chown, or use another path")
    PICKLING = "pickling", Of(_FAILED, "define it at the top of a module, in place of a lambda")
    WRONG_SHAPES = "wrong-shapes", Of(_FAILED, "print the shapes before that line; let them agree")
    NAN_LOSS = "nan-loss", Of(_FAILED, "a lower learning rate, clipped gradients, or bf16")
    ENDLESS_LOOP = "endless-loop", Of(_FAILED, "look at the stack of the rank that computes")
    DEADLOCK = "deadlock", Of(
        _FAILED, "find what that line waits for; call collectives on all ranks")
    EXITED_EARLY = "exited-early", Of(_FAILED, "let all ranks make the same number of steps")
    # collectives
    MISSING_COLLECTIVE = "missing-collective", Of(
        _FAILED, "move it out of what only some ranks run")
    MISMATCHED_COLLECTIVE = "mismatched-collective", Of(
        _FAILED, "no branch by rank around either; as many batches on all ranks: drop_last, join()")
    SHAPE_MISMATCH_IN_COLLECTIVE = "shape-mismatch-in-collective", Of(
        _FAILED, "the same sizes and as many steps on all ranks; no branch by rank around it")
    UNEVEN_BATCHES = "uneven-batches", Of(_FAILED, "drop_last=True, or model.join()")
    STRAGGLER = "straggler", Of(_FAILED, "look at that rank's GPU clocks, CPU load and data")
    # data
    DATA_LOADER_WORKER_DIED = "data-loader-worker-died", Of(
        _FAILED, "num_workers=0 shows its error")
    DATA_STALL = "data-stall", Of(_FAILED, "more num_workers, a faster disk, or a local copy")
    SHM_TOO_SMALL = "shm-too-small", Of(
        _FAILED, "--set resources.shm=8Gi (docker run --shm-size=8g)")
    BAD_DATA = "bad-data", Of(_FAILED, "fetch the file anew, or take the checkpoint before it")
    # memory, disk, limits of the machine
    CUDA_OUT_OF_MEMORY = "cuda-out-of-memory", Of(
        _MEMORY, "a smaller batch, checkpointing, or fsdp")
    HOST_OUT_OF_MEMORY = "host-out-of-memory", Of(
        _MEMORY, "--set resources.memory=SIZE, or hold less")
    TOO_MANY_FILES = "too-many-files", Of(
        _FAILED, "ulimit -n 1048576, or fewer files and num_workers")
    TOO_MANY_PROCESSES = "too-many-processes", Of(_FAILED, "ulimit -u; the container's pids limit")
    CLOCK_JUMP = "clock-jump", Of(_UNMET, "chronyc tracking on each node; start chronyd")
    # endings from outside
    CRASHED = "crashed", Of(_FAILED, "faulthandler's stack in the log, or gdb with the core")
    STOPPED_BY_USER = "stopped-by-user", Of(_STOPPED, "run it again, with --resume RUN")
    TIME_LIMIT = "time-limit", Of(_PREEMPTED, "ask for more time; --resume RUN goes on")
    HOLD_ENDED = "hold-ended", Of(_LOST, "make the hold again: launcher hold")
    # network and meeting
    NETWORK_CUT = "network-cut", Of(_LOST, "ping, ip -s link between the two; then --resume RUN")
    DNS = "dns", Of(_UNMET, "getent hosts NAME on each node; or use an address")
    PORT_TAKEN = "port-taken", Of(_UNMET, "ss -ltnp tells whose it is; end that, or another port")
    MASTER_UNREACHABLE = "master-unreachable", Of(
        _UNMET, "nc -vz HOST PORT from each node; see node 0")
    WRONG_INTERFACE = "wrong-interface", Of(_UNMET, "ip -br addr; NCCL_ or GLOO_SOCKET_IFNAME")
    PROXY = "proxy", Of(_UNMET, "unset http_proxy, or export no_proxy=ADDRESSES")
    FIREWALL = "firewall", Of(_UNMET, "open all ports between the nodes; nc -vz HOST PORT")
    NCCL_ERROR = "nccl-error", Of(_FAILED, "once more with NCCL_DEBUG=INFO; read what comes before")
    # GPUs and fabric
    GPU_FAULT = "gpu-fault", Of(_LOST, "drain the node; dmesg -T | grep Xid; reset the GPU")
    GPU_MEMORY_ERROR = "gpu-memory-error", Of(
        _LOST, "drain; nvidia-smi -q -d ECC,ROW_REMAPPER; reset")
    NVLINK_FAULT = "nvlink-fault", Of(
        _LOST, "drain it; nvidia-smi nvlink -s; look at fabricmanager")
    INFINIBAND_FAULT = "infiniband-fault", Of(_LOST, "ibstat there; look at its port and cable")
    NO_GPU = "no-gpu", Of(_INPUT, "nvidia-smi -L there; ask for GPUs, or fewer processes")
    CUDA_ASSERT = "cuda-assert", Of(_FAILED, "CUDA_LAUNCH_BLOCKING=1 names the line; check indices")
    WRONG_ARCHITECTURE = "wrong-architecture", Of(
        _INPUT, "a torch, or image, built for this machine")
    # versions
    VERSION_MISMATCH = "version-mismatch", Of(_INPUT, "one image, or one environment, on all nodes")
    DRIVER_TOO_OLD = "driver-too-old", Of(_INPUT, "a newer driver, or older CUDA; or a reboot")
    CODE_MISMATCH = "code-mismatch", Of(_INPUT, "the same code and configuration on all nodes")
    # engines and schedulers
    IMAGE_PULL = "image-pull", Of(_TARGET, "correct the image's name, or add the registry's secret")
    CONTAINER_START = "container-start", Of(
        _TARGET, "create the Secret, or correct command and mounts")
    NO_ROOM = "no-room", Of(_TARGET, "ask for less, or wait; doctor tells what there is")
    NOT_ALLOWED = "not-allowed", Of(_TARGET, "ask for the right, account or quota that it names")
    UNKNOWN = "unknown", Of(_FAILED, "read the whole log; on GPUs, once more with NCCL_DEBUG=INFO")
    """No line that was read names the cause."""
    # fmt: on

    def __new__(cls, text: str, means: RunEnd | Of) -> Cause:
        cause = str.__new__(cls, text)
        cause._value_, cause._means = text, means
        return cause

    @classmethod
    def _missing_(cls, value: object) -> Cause | None:
        return _OF_OLDER_RUNS.get(value)

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def of(self) -> Cause:
        """The cause of a run that this one stands for; itself where a run can end by it."""
        return self if isinstance(self._means, RunEnd) else parse_cause(self._means.cause)

    @property
    def run_end(self) -> RunEnd:
        """What the cause means for a run: state, exit code, fault, meaning and fix."""
        means = self.of._means
        assert isinstance(means, RunEnd)
        return means

    @property
    def state(self) -> RunState:
        return self.run_end.state

    @property
    def exit_code(self) -> ExitCode:
        return self.run_end.exit_code

    @property
    def fix(self) -> str:
        """What helps in most cases; empty where only a finer cause can say it."""
        return self._means.fix

    @property
    def meaning(self) -> str:
        """What it says, in a line for docs/exit-codes.md; empty where its name and fix do."""
        return self._means.meaning

    @property
    def section(self) -> str:
        """The command that prints the runbook's section on this cause."""
        return typed.command("docs", self)


def parse_cause(text: str) -> Cause:
    """The cause of this name. Raises ``ValueError`` for another word."""
    return Cause(text)  # type: ignore[call-arg]  # mypy takes it for ``__new__``


OF_RUNS = tuple(cause for cause in Cause if isinstance(cause._means, RunEnd))
"""What a run can end by; the others are finer."""
_OF_OLDER_RUNS: dict[object, Cause] = {
    "exit": Cause.SCRIPT_ERROR, "signal": Cause.KILLED, "left-early": Cause.EXITED_EARLY,
}  # fmt: skip
_OF_EXIT_CODE = {cause.exit_code: cause for cause in reversed(OF_RUNS)} | {
    # A signal's code does not say that a node was lost or a stop was requested.
    ExitCode.KILLED: Cause.KILLED,
    ExitCode.PREEMPTED: Cause.PREEMPTED,
}


def with_cause(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of a node or a run; those of older runs call its cause ``reason``."""
    return {"cause": record.get("reason"), **record}


def cause_of_exit_code(code: int) -> Cause:
    """The cause behind any exit code of an agent, as in a shell: 128 + n for signal n.

    Of several causes with one code, the first in the table is returned.
    """
    if code in set(ExitCode):
        return _OF_EXIT_CODE[ExitCode(code)]
    return Cause.KILLED if code > RETRY_FROM else Cause.TRAINING_FAILED
