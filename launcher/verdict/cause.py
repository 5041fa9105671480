"""The causes that a verdict may name, the Reason that each stands for, and what helps.

Each has a section in docs/runbook.md, whose anchor is the cause's own text.
"""

from __future__ import annotations

import enum

from launcher.contract.reasons import Reason

_FAILED, _INPUT, _LOST = Reason.TRAINING_FAILED, Reason.BAD_INPUT, Reason.NODE_LOST
_UNMET, _TARGET = Reason.RENDEZVOUS_UNREACHABLE, Reason.TARGET_UNREACHABLE
_MEMORY = Reason.OUT_OF_MEMORY


class Cause(enum.StrEnum):
    """Why a run failed or stands still; finer than ``Reason``."""

    reason: Reason
    """What a run's record says of it."""
    fix: str
    """What helps in most cases."""

    # the script
    SCRIPT_ERROR = "script-error", _FAILED, "correct the line that raised it"
    WRONG_ARGUMENT = "wrong-argument", _INPUT, "correct the option; the program's --help lists them"
    MISSING_MODULE = (
        *("missing-module", _INPUT),
        "install the package where the workers run, or in the image",
    )
    MISSING_FILE = "missing-file", _INPUT, "name a path that every node has, or mount it"
    PERMISSION = (
        *("permission", _INPUT),
        "namei -l FILE tells whose it is; change its owner, or the path",
    )
    PICKLING = "pickling", _FAILED, "define it at the top of a module, in place of a lambda"
    WRONG_SHAPES = (
        *("wrong-shapes", _FAILED),
        "print the shapes before that line; make model and data agree",
    )
    NAN_LOSS = (
        *("nan-loss", _FAILED),
        "a lower learning rate, clipped gradients, bf16 in place of fp16",
    )
    ENDLESS_LOOP = (
        *("endless-loop", _FAILED),
        "look at the stack of the rank that computes; end its loop",
    )
    DEADLOCK = (
        *("deadlock", _FAILED),
        "look at the stack of the rank that waits; free what it waits for",
    )
    EXITED_EARLY = (
        *("exited-early", _FAILED),
        "let all ranks make the same number of steps before they end",
    )
    # collectives
    MISSING_COLLECTIVE = (
        *("missing-collective", _FAILED),
        "move the collective out of what only some ranks run",
    )
    MISMATCHED_COLLECTIVE = (
        *("mismatched-collective", _FAILED),
        "call the same collectives in one order on all ranks",
    )
    SHAPE_MISMATCH_IN_COLLECTIVE = (
        *("shape-mismatch-in-collective", _FAILED),
        "give it the same sizes and types on all ranks",
    )
    UNEVEN_BATCHES = (
        *("uneven-batches", _FAILED),
        "drop_last=True, DistributedSampler, or model.join()",
    )
    STRAGGLER = "straggler", _FAILED, "look at that rank's GPU clocks, CPU load and data"
    # data
    DATA_LOADER_WORKER_DIED = (
        *("data-loader-worker-died", _FAILED),
        "num_workers=0 shows its error; then memory and shm",
    )
    DATA_STALL = (
        *("data-stall", _FAILED),
        "more num_workers, a faster disk, or a local copy of the data",
    )
    SHM_TOO_SMALL = "shm-too-small", _FAILED, "--set resources.shm=8Gi (docker: --shm-size=8g)"
    BAD_DATA = "bad-data", _FAILED, "fetch the file anew, or train on from the checkpoint before it"
    # memory, disk, limits of the machine
    CUDA_OUT_OF_MEMORY = (
        *("cuda-out-of-memory", _MEMORY),
        "a smaller batch, gradient checkpointing, or sharding (--strategy fsdp)",
    )
    HOST_OUT_OF_MEMORY = (
        *("host-out-of-memory", _MEMORY),
        "--set resources.memory=SIZE, fewer num_workers, or data that is not held whole",
    )
    DISK_FULL = "disk-full", Reason.DISK_FULL, "df -h; df -i; make room, or name another folder"
    TOO_MANY_FILES = (
        *("too-many-files", _FAILED),
        "ulimit -n 1048576, or fewer open files and num_workers",
    )
    TOO_MANY_PROCESSES = (
        *("too-many-processes", _FAILED),
        "ulimit -u, pids limit of the container; fewer threads",
    )
    CLOCK_JUMP = "clock-jump", _UNMET, "chronyc tracking on each node; start chronyd"
    # endings from outside
    KILLED = (
        *("killed", Reason.KILLED),
        "dmesg -T on the node tells of kills for memory; ask who did it",
    )
    CRASHED = "crashed", _FAILED, "its stack in the log; else gdb -batch -ex bt PYTHON CORE"
    STOPPED_BY_USER = "stopped-by-user", Reason.STOP_REQUESTED, "run it again with --resume RUN"
    PREEMPTED = "preempted", Reason.PREEMPTED, "run it again with --resume RUN"
    TIME_LIMIT = "time-limit", Reason.PREEMPTED, "a longer time limit; --resume RUN goes on"
    NODE_LOST = (
        *("node-lost", _LOST),
        "look at that machine: power, kernel log, network; then --resume RUN",
    )
    # network and meeting
    NETWORK_CUT = (
        *("network-cut", _LOST),
        "ping and ip -s link between the two nodes; then --resume RUN",
    )
    DNS = "dns", _UNMET, "getent hosts NAME on each node; use an address that resolves"
    PORT_TAKEN = "port-taken", _UNMET, "ss -ltnp shows who has it; end that, or choose another port"
    MASTER_UNREACHABLE = (
        *("master-unreachable", _UNMET),
        "nc -vz HOST PORT from each node; see whether node 0 runs",
    )
    WRONG_INTERFACE = (
        *("wrong-interface", _UNMET),
        "ip -br addr; NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME",
    )
    PROXY = "proxy", _UNMET, "export no_proxy=localhost,127.0.0.1,ADDRESSES, or unset http_proxy"
    FIREWALL = "firewall", _UNMET, "open all ports between the nodes; nc -vz HOST PORT"
    NCCL_ERROR = (
        *("nccl-error", _FAILED),
        "run it once with NCCL_DEBUG=INFO and read what comes before",
    )
    # GPUs and fabric
    GPU_FAULT = (
        *("gpu-fault", _LOST),
        "drain the node; nvidia-smi -q, dmesg -T | grep Xid; reset the GPU",
    )
    GPU_MEMORY_ERROR = (
        *("gpu-memory-error", _LOST),
        "drain the node; nvidia-smi -q -d ECC,ROW_REMAPPER; reset it",
    )
    NVLINK_FAULT = (
        *("nvlink-fault", _LOST),
        "drain the node; nvidia-smi nvlink -s -e; look at fabricmanager",
    )
    INFINIBAND_FAULT = (
        *("infiniband-fault", _LOST),
        "ibstat, ibv_devinfo on that node; look at port and cable",
    )
    NO_GPU = "no-gpu", _INPUT, "nvidia-smi -L there; ask for the GPUs, or fewer processes"
    GPU_BUSY = "gpu-busy", Reason.GPU_BUSY, "nvidia-smi shows who holds it; end that process"
    CUDA_ASSERT = (
        *("cuda-assert", _FAILED),
        "CUDA_LAUNCH_BLOCKING=1 names the line; check indices and labels",
    )
    WRONG_ARCHITECTURE = (
        *("wrong-architecture", _INPUT),
        "a build of torch (or image) for this GPU and processor",
    )
    # versions
    VERSION_MISMATCH = "version-mismatch", _INPUT, "one image or one environment on all nodes"
    DRIVER_TOO_OLD = (
        *("driver-too-old", _INPUT),
        "a newer driver, or an image with an older CUDA; or reboot",
    )
    CODE_MISMATCH = "code-mismatch", _INPUT, "the same code and configuration on all nodes"
    # engines and schedulers
    IMAGE_PULL = "image-pull", _TARGET, "correct the image's name, or give it the registry's secret"
    CONTAINER_START = (
        *("container-start", _TARGET),
        "correct the command, the mount or the runtime it names",
    )
    NO_ROOM = "no-room", _TARGET, "ask for less, or wait; doctor tells what there is"
    NOT_ALLOWED = (
        *("not-allowed", _TARGET),
        "ask for the right, the account or the quota that it names",
    )
    TARGET_UNREACHABLE = (
        *("target-unreachable", _TARGET),
        "start the service, or correct its address; doctor checks",
    )
    UNKNOWN = "unknown", _FAILED, "launcher logs RUN; run it again with NCCL_DEBUG=INFO"
    """Nothing that was read tells it."""

    def __new__(cls, text: str, reason: Reason, fix: str) -> Cause:
        cause = str.__new__(cls, text)
        cause._value_, cause.reason, cause.fix = text, reason, fix
        return cause

    @property
    def section(self) -> str:
        """Where the runbook tells of it."""
        return f"docs/runbook.md#{self}"
