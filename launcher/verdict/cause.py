"""The causes that a verdict may name, the Reason that each stands for, and what helps.

Each has a section in docs/runbook.md or runbook-nodes.md, whose anchor is the cause's own text.
"""

from __future__ import annotations

import enum

from launcher.contract.reasons import Reason

_FAILED, _INPUT, _LOST = Reason.TRAINING_FAILED, Reason.BAD_INPUT, Reason.NODE_LOST
_UNMET, _TARGET = Reason.RENDEZVOUS_UNREACHABLE, Reason.TARGET_UNREACHABLE
_MEMORY = Reason.OUT_OF_MEMORY


class FailureCause(enum.StrEnum):
    """Why a run failed or stands still; finer than ``Reason``."""

    reason: Reason
    """The coarser reason that a run's record gives for it."""
    fix: str
    """What helps in most cases."""

    # the script
    SCRIPT_ERROR = "script-error", _FAILED, "correct that line; if none is named, look for exit()"
    WRONG_ARGUMENT = "wrong-argument", _INPUT, "correct the option; the program's --help lists them"
    MISSING_MODULE = "missing-module", _INPUT, "python -m pip install PACKAGE where the workers run"
    MISSING_FILE = "missing-file", _INPUT, "name a path that every node has, or mount it"
    PERMISSION = "permission", _INPUT, "namei -l FILE shows the owner; chown, or use another path"
    PICKLING = "pickling", _FAILED, "define it at the top of a module, in place of a lambda"
    WRONG_SHAPES = "wrong-shapes", _FAILED, "print the shapes before that line; let them agree"
    NAN_LOSS = "nan-loss", _FAILED, "a lower learning rate, clipped gradients, or bf16"
    ENDLESS_LOOP = "endless-loop", _FAILED, "look at the stack of the rank that computes"
    DEADLOCK = "deadlock", _FAILED, "find what that line waits for; call collectives on all ranks"
    EXITED_EARLY = "exited-early", _FAILED, "let all ranks make the same number of steps"
    # collectives
    MISSING_COLLECTIVE = "missing-collective", _FAILED, "move it out of what only some ranks run"
    MISMATCHED_COLLECTIVE = (
        "mismatched-collective",
        _FAILED,
        "no branch by rank around either; as many batches on all ranks: drop_last, join()",
    )
    SHAPE_MISMATCH_IN_COLLECTIVE = (
        "shape-mismatch-in-collective",
        _FAILED,
        "the same sizes and as many steps on all ranks; no branch by rank around it",
    )
    UNEVEN_BATCHES = "uneven-batches", _FAILED, "drop_last=True, or model.join()"
    STRAGGLER = "straggler", _FAILED, "look at that rank's GPU clocks, CPU load and data"
    # data
    DATA_LOADER_WORKER_DIED = "data-loader-worker-died", _FAILED, "num_workers=0 shows its error"
    DATA_STALL = "data-stall", _FAILED, "more num_workers, a faster disk, or a local copy"
    SHM_TOO_SMALL = "shm-too-small", _FAILED, "--set resources.shm=8Gi (docker run --shm-size=8g)"
    BAD_DATA = "bad-data", _FAILED, "fetch the file anew, or take the checkpoint before it"
    # memory, disk, limits of the machine
    CUDA_OUT_OF_MEMORY = "cuda-out-of-memory", _MEMORY, "a smaller batch, checkpointing, or fsdp"
    HOST_OUT_OF_MEMORY = "host-out-of-memory", _MEMORY, "--set resources.memory=SIZE, or hold less"
    DISK_FULL = "disk-full", Reason.DISK_FULL, "df -h; df -i; make room, or use another disk"
    TOO_MANY_FILES = "too-many-files", _FAILED, "ulimit -n 1048576, or fewer files and num_workers"
    TOO_MANY_PROCESSES = "too-many-processes", _FAILED, "ulimit -u; the container's pids limit"
    CLOCK_JUMP = "clock-jump", _UNMET, "chronyc tracking on each node; start chronyd"
    # endings from outside
    KILLED = "killed", Reason.KILLED, "find who sent it: a service, a person, or dmesg -T"
    CRASHED = "crashed", _FAILED, "faulthandler's stack in the log, or gdb with the core"
    STOPPED_BY_USER = "stopped-by-user", Reason.STOP_REQUESTED, "run it again, with --resume RUN"
    PREEMPTED = "preempted", Reason.PREEMPTED, "run it again, with --resume RUN"
    TIME_LIMIT = "time-limit", Reason.PREEMPTED, "ask for more time; --resume RUN goes on"
    NODE_LOST = "node-lost", _LOST, "look at its power, kernel log and network; --resume RUN"
    # network and meeting
    NETWORK_CUT = "network-cut", _LOST, "ping, ip -s link between the two; then --resume RUN"
    DNS = "dns", _UNMET, "getent hosts NAME on each node; or use an address"
    PORT_TAKEN = "port-taken", _UNMET, "ss -ltnp tells whose it is; end that, or another port"
    MASTER_UNREACHABLE = "master-unreachable", _UNMET, "nc -vz HOST PORT from each node; see node 0"
    WRONG_INTERFACE = "wrong-interface", _UNMET, "ip -br addr; NCCL_ or GLOO_SOCKET_IFNAME"
    PROXY = "proxy", _UNMET, "unset http_proxy, or export no_proxy=ADDRESSES"
    FIREWALL = "firewall", _UNMET, "open all ports between the nodes; nc -vz HOST PORT"
    NCCL_ERROR = "nccl-error", _FAILED, "once more with NCCL_DEBUG=INFO; read what comes before"
    # GPUs and fabric
    GPU_FAULT = "gpu-fault", _LOST, "drain the node; dmesg -T | grep Xid; reset the GPU"
    GPU_MEMORY_ERROR = "gpu-memory-error", _LOST, "drain; nvidia-smi -q -d ECC,ROW_REMAPPER; reset"
    NVLINK_FAULT = "nvlink-fault", _LOST, "drain it; nvidia-smi nvlink -s; look at fabricmanager"
    INFINIBAND_FAULT = "infiniband-fault", _LOST, "ibstat there; look at its port and cable"
    NO_GPU = "no-gpu", _INPUT, "nvidia-smi -L there; ask for GPUs, or fewer processes"
    GPU_BUSY = "gpu-busy", Reason.GPU_BUSY, "nvidia-smi tells who holds it; end that process"
    CUDA_ASSERT = "cuda-assert", _FAILED, "CUDA_LAUNCH_BLOCKING=1 names the line; check indices"
    WRONG_ARCHITECTURE = "wrong-architecture", _INPUT, "a torch, or image, built for this machine"
    # versions
    VERSION_MISMATCH = "version-mismatch", _INPUT, "one image, or one environment, on all nodes"
    DRIVER_TOO_OLD = "driver-too-old", _INPUT, "a newer driver, or older CUDA; or a reboot"
    CODE_MISMATCH = "code-mismatch", _INPUT, "the same code and configuration on all nodes"
    # engines and schedulers
    IMAGE_PULL = "image-pull", _TARGET, "correct the image's name, or add the registry's secret"
    CONTAINER_START = "container-start", _TARGET, "create the Secret, or correct command and mounts"
    NO_ROOM = "no-room", _TARGET, "ask for less, or wait; doctor tells what there is"
    NOT_ALLOWED = "not-allowed", _TARGET, "ask for the right, account or quota that it names"
    TARGET_UNREACHABLE = "target-unreachable", _TARGET, "start the service, or correct its address"
    UNKNOWN = "unknown", _FAILED, "read the whole log; on GPUs, once more with NCCL_DEBUG=INFO"
    """No line that was read names the cause."""

    def __new__(cls, text: str, reason: Reason, fix: str) -> FailureCause:
        cause = str.__new__(cls, text)
        cause._value_, cause.reason, cause.fix = text, reason, fix
        return cause

    @property
    def section(self) -> str:
        """The command that prints the runbook's section on this cause."""
        return f"launcher docs {self}"


_FOLLOWS = """
dns wrong-interface no-gpu gpu-busy cuda-assert bad-data data-loader-worker-died data-stall
crashed killed endless-loop deadlock straggler network-cut firewall exited-early
target-unreachable container-start time-limit nccl-error master-unreachable
script-error missing-collective stopped-by-user
"""
FOLLOWS = tuple(cause for word in _FOLLOWS.split() for cause in FailureCause if cause == word)
"""Causes that another cause may have led to, the vaguest last. Text alone makes none certain."""
