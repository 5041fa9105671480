"""What the options of torchrun and its kin are called in a job file, and which have no place there.

Sources: ``torchrun --help`` (2.13), ``accelerate launch --help`` (1.x) and the variables that
``accelerate.utils.launch`` sets, ``horovodrun --help``, ``mpirun(1)`` of Open MPI, ``mpiexec`` of
Hydra, ``deepspeed --help``, ``docker run --help``, ``sbatch(1)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MEETING = "the launcher decides where and how the nodes meet"
RANK = "each node gets its rank from the launcher"
OUTPUT = "every worker's output is in the run folder, launcher logs shows it"
STARTS = "the launcher starts the workers itself"
NOWHERE = "no key of a job file says this"

LEFT = "!"
"""Begins the reason why an option is left out, in the place of its key."""
ENV = "env."


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that starts others.

    ``keys``: for each option, by its long name with ``-``, the key of the job file, ``!`` and why
    it has none, or the name of what ``command_line`` does with it (``=machines``). ``flags`` take
    no value. ``short``: the long names of short options.
    """

    keys: Mapping[str, str]
    flags: frozenset[str] = frozenset()
    short: Mapping[str, str] = field(default_factory=dict)


def _left(why: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, LEFT + why)


_MEETING = _left(
    MEETING,
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "standalone", "master-addr", "master-port"),
    *("is-host", "local-addr", "rdzv-port"),
)
TORCHRUN = Program(
    keys={
        "nnodes": "nnodes",
        "nproc-per-node": "nproc_per_node",
        "max-restarts": "max_restarts",
        "rdzv-conf": "=rdzv_conf",
        "module": "=module",
        **_MEETING,
        **_left(RANK, "node-rank"),
        **_left(OUTPUT, *("log-dir", "redirects", "tee", "local-ranks-filter", "logs-specs")),
        **_left(STARTS, *("no-python", "run-path", "use-env", "start-method", "monitor-interval")),
    },
    flags=frozenset(("standalone", "no-python", "module", "run-path", "use-env")),
    short={"m": "module", "r": "redirects", "t": "tee"},
)
HOROVODRUN = Program(
    keys={
        "num-proc": "=processes",
        "hosts": "=machines",
        "hostfile": "hosts.inventory",
        "min-np": "=least",
        "max-np": "=most",
        "reset-limit": "max_restarts",
        "network-interfaces": "env.NCCL_SOCKET_IFNAME",
        **_left(MEETING, "ssh-port", "start-timeout", "gloo", "mpi", "check-build"),
        **_left(OUTPUT, "output-filename", "verbose"),
    },
    flags=frozenset(("gloo", "mpi", "verbose", "check-build", "disable-cache")),
    short={"np": "num-proc", "H": "hosts", "p": "ssh-port"},
)
_BINDING = _left(
    "the launcher binds processes no other than torchrun does",
    *("bind-to", "map-by", "rank-by", "report-bindings", "bind-to-none", "nooversubscribe"),
    *("oversubscribe", "rankfile", "cpus-per-proc"),
)
MPIRUN = Program(
    keys={
        "n": "=processes",
        "host": "=machines",
        "hostfile": "hosts.inventory",
        "npernode": "nproc_per_node",
        "ppn": "nproc_per_node",
        "x": "=forwarded",
        "wdir": "workdir",
        **_left(MEETING, "mca", "prtemca", "pmixmca", "prefix", "launcher", "iface"),
        **_left(OUTPUT, "output-filename", "tag-output", "prepend-rank", "timestamp-output"),
        **_left(STARTS, "allow-run-as-root"),
        **_BINDING,
        "genv": "=forwarded",
        "env": "=forwarded",
    },
    flags=frozenset(
        (
            *("allow-run-as-root", "report-bindings", "oversubscribe", "nooversubscribe"),
            *("tag-output", "prepend-rank", "timestamp-output", "v", "verbose"),
        )
    ),
    short={"np": "n", "c": "n", "H": "host", "hosts": "host", "f": "hostfile",
           "machinefile": "hostfile", "N": "npernode", "perhost": "ppn", "wd": "wdir"},
)  # fmt: skip
DEEPSPEED = Program(
    keys={
        "num-nodes": "nnodes",
        "num-gpus": "nproc_per_node",
        "hostfile": "hosts.inventory",
        "include": "=include",
        "module": "=module",
        "exclude": LEFT + "launcher run --on hosts takes --exclude with host names",
        **_MEETING,
        **_left(RANK, "node-rank"),
        **_left(STARTS, "launcher", "no-python", "no-local-rank", "force-multi", "no-ssh"),
        **_left(OUTPUT, "enable-each-rank-log"),
    },
    flags=frozenset(("module", "no-python", "no-local-rank", "force-multi", "no-ssh")),
    short={"H": "hostfile", "i": "include", "e": "exclude"},
)
ACCELERATE = Program(
    keys={
        "num-processes": "=processes",
        "num-machines": "nnodes",
        "config-file": "=accelerate_config",
        "module": "=module",
        "mixed-precision": "env.ACCELERATE_MIXED_PRECISION",
        "gradient-accumulation-steps": "env.ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        "dynamo-backend": "env.ACCELERATE_DYNAMO_BACKEND",
        "use-fsdp": "env.ACCELERATE_USE_FSDP",
        "use-deepspeed": "env.ACCELERATE_USE_DEEPSPEED",
        "deepspeed-config-file": "env.ACCELERATE_DEEPSPEED_CONFIG_FILE",
        "zero-stage": "env.ACCELERATE_DEEPSPEED_ZERO_STAGE",
        "use-cpu": "env.ACCELERATE_USE_CPU",
        "num-cpu-threads-per-process": "env.OMP_NUM_THREADS",
        "max-restarts": "max_restarts",
        "debug": "env.ACCELERATE_DEBUG_MODE",
        "gpu-ids": "=devices",
        **_left(
            MEETING,
            *("main-process-ip", "main-process-port", "main-process-addr", "rdzv-backend"),
            *("rdzv-conf", "same-network", "compute-environment", "main-training-function"),
        ),
        **_left(RANK, "machine-rank"),
        **_left(STARTS, "multi-gpu", "no-python", "distributed-type", "monitor-interval"),
        **_left(OUTPUT, "log-dir", "tee", "quiet"),
    },
    flags=frozenset(
        ("multi-gpu", "module", "no-python", "use-fsdp", "use-deepspeed", "use-cpu", "quiet",
         "debug")
    ),
    short={"m": "module", "q": "quiet", "cpu": "use-cpu"},
)  # fmt: skip
DOCKER = Program(
    keys={
        "name": "name",
        "gpus": "=gpus",
        "entrypoint": "=entrypoint",
        "shm-size": "resources.shm",
        "memory": "resources.memory",
        "cpus": "resources.cpus",
        "volume": "=volume",
        "mount": "=mount",
        "env": "=variable",
        "workdir": "workdir",
        "runtime": "docker.runtime",
        "label": "=label",
        "add-host": "=add_host",
        "ipc": LEFT + "resources.shm is the size of /dev/shm; without the host's",
        "ulimit": LEFT + "resources.rdma: true lifts the limit of locked memory",
        "env-file": LEFT + "write its lines under env, and names of secrets under secrets",
        "network": LEFT + MEETING,
        **_left(STARTS, "rm", "detach", "interactive", "tty", "init", "restart"),
    },
    flags=frozenset(("rm", "detach", "interactive", "tty", "init", "privileged", "read-only")),
    short={"v": "volume", "e": "env", "w": "workdir", "m": "memory", "d": "detach", "t": "tty",
           "i": "interactive", "l": "label", "net": "network", "u": "user", "p": "publish"},
)  # fmt: skip
SBATCH = Program(
    keys={
        "job-name": "name",
        "nodes": "nnodes",
        "ntasks-per-node": "=tasks_per_node",
        "ntasks": "=tasks",
        "gpus-per-node": "slurm.gpus_per_node",
        "gres": "slurm.gres",
        "cpus-per-task": "slurm.cpus_per_task",
        "mail-type": "=extra",
        "mail-user": "=extra",
        "comment": "=extra",
        "nodelist": "=extra",
        "licenses": "=extra",
        "container-image": "=pyxis",
        "container-mounts": "=container_mounts",
        "chdir": LEFT + "the code's folder is the working folder: launcher run, in that folder",
        "gpus": "=all_gpus",
        "mem-per-gpu": LEFT + "write slurm.mem, of each node",
        "mem-per-cpu": LEFT + "write slurm.mem, of each node",
        "signal": LEFT + "the launcher asks for the warning itself",
        "array": LEFT + "a launcher run for each element, or slurm.kind: array for elastic nodes",
        **{
            name: f"slurm.{name}"
            for name in (
                *("partition", "account", "qos", "time", "constraint", "reservation"),
                *("exclude", "mem", "exclusive", "requeue"),
            )
        },
        **_left(OUTPUT, "output", "error", "open-mode"),
        **_left(STARTS, "kill-on-bad-exit", "no-kill", "wait", "label", "mpi", "unbuffered"),
    },
    flags=frozenset(("exclusive", "requeue", "no-requeue", "label", "no-kill", "unbuffered")),
    short={"J": "job-name", "N": "nodes", "n": "ntasks", "p": "partition", "A": "account",
           "t": "time", "c": "cpus-per-task", "C": "constraint", "o": "output", "e": "error",
           "x": "exclude", "w": "nodelist", "D": "chdir", "q": "qos", "G": "gpus", "a": "array",
           "l": "label", "u": "unbuffered", "K": "kill-on-bad-exit"},
)  # fmt: skip
