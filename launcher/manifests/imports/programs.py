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
BINDS = "the launcher binds processes no other than torchrun does"
HOSTS = "launcher run --on hosts takes it, with names of hosts"
NOWHERE = "no key of a job file says this"
ADDS_LOCAL_RANK = (
    "--local_rank, which this program adds",
    "the launcher gives LOCAL_RANK in the environment, as torchrun does",
)
GIVEN = {
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT"), MEETING),
    **dict.fromkeys(("WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK"), RANK),
    "CUDA_VISIBLE_DEVICES": "it stands around launcher run as well",
}
"""Variables that a launch line sets, and a job file does not."""

_LEFT = {
    MEETING: "rdzv-backend rdzv-endpoint rdzv-id rdzv-port standalone master-addr master-port "
    "is-host local-addr main-process-ip main-process-port main-process-addr same-network "
    "compute-environment main-training-function ssh-port start-timeout gloo check-build mca "
    "prtemca pmixmca prefix iface network",
    RANK: "node-rank machine-rank",
    OUTPUT: "log-dir redirects tee local-ranks-filter logs-specs output-filename verbose "
    "tag-output prepend-rank timestamp-output enable-each-rank-log quiet output error open-mode",
    STARTS: "no-python run-path use-env start-method monitor-interval allow-run-as-root launcher "
    "no-local-rank force-multi no-ssh multi-gpu distributed-type rm detach interactive tty init "
    "restart kill-on-bad-exit no-kill wait mpi unbuffered",
    BINDS: "bind-to map-by rank-by report-bindings bind-to-none nooversubscribe oversubscribe "
    "rankfile cpus-per-proc",
    HOSTS: "include exclude",
    "rdzv.conf has join_timeout, last_call_timeout and read_timeout": "rdzv-conf",
    "nnodes: MIN:MAX says it, in nodes": "min-np max-np",
    "import that file too, with the script behind --": "config-file",
    "CUDA_VISIBLE_DEVICES around launcher run says it": "gpu-ids",
    "write it under mounts: SOURCE:TARGET[:ro]": "mount",
    "docker.extra_hosts says it": "add-host",
    "resources.shm is the size of /dev/shm; without the host's": "ipc",
    "resources.rdma: true lifts the limit of locked memory": "ulimit",
    "write its lines under env, and names of secrets under secrets": "env-file",
    "the code's folder is the working folder: launcher run, in that folder": "chdir",
    "write slurm.mem, of each node": "mem-per-gpu mem-per-cpu",
    "the launcher asks for the warning itself": "signal",
    "a launcher run for each element, or slurm.kind: array for elastic nodes": "array",
}
LEFT = {name: why for why, names in _LEFT.items() for name in names.split()}
"""Why options have no key, whichever program they are given to."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that starts others.

    ``keys``: for each option, by its long name with ``-``, the key of the job file, or the name of
    what ``command_line`` does with it (``=machines``). ``flags`` take no value, ``twos`` take two.
    ``short``: the long names of short options. ``names`` is a pattern, ``verb`` the word behind it.
    ``notes``: what it does beyond its options, and who does that here.
    """

    names: str
    verb: str = ""
    keys: Mapping[str, str]
    flags: frozenset[str] = frozenset()
    twos: frozenset[str] = frozenset()
    short: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()
    has_secrets: bool = False


def _named(names: str, prefix: str = "") -> dict[str, str]:
    """Options whose keys are called as they are, behind a prefix."""
    upper = prefix.startswith("env.")
    keys = {name: name.replace("-", "_") for name in names.split()}
    return {name: prefix + (key.upper() if upper else key) for name, key in keys.items()}


def _flags(names: str) -> frozenset[str]:
    return frozenset(names.split())


PROGRAMS = {
    "torchrun": Program(
        names="torchrun",
        keys={**_named("nnodes nproc-per-node max-restarts"), "module": "=module"},
        flags=_flags("standalone no-python module run-path use-env"),
        short={"m": "module", "r": "redirects", "t": "tee"},
    ),
    "horovodrun": Program(
        names="horovodrun",
        notes=(
            ("horovod", "import fabric_train.horovod as hvd in the script: launcher docs horovod"),
        ),
        keys={
            "num-proc": "=processes",
            "hosts": "=machines",
            "hostfile": "hosts.inventory",
            "reset-limit": "max_restarts",
            "network-interfaces": "env.NCCL_SOCKET_IFNAME",
        },
        flags=_flags("gloo mpi verbose check-build disable-cache"),
        short={"np": "num-proc", "H": "hosts", "p": "ssh-port"},
    ),
    "mpirun": Program(
        names="mpirun|mpiexec",
        keys={
            "n": "=processes",
            "host": "=machines",
            "hostfile": "hosts.inventory",
            **dict.fromkeys(("npernode", "ppn"), "nproc_per_node"),
            **dict.fromkeys(("x", "genv", "env"), "=variable"),
            "wdir": "workdir",
        },
        flags=_flags(
            "allow-run-as-root report-bindings oversubscribe nooversubscribe tag-output "
            "prepend-rank timestamp-output v verbose"
        ),
        twos=_flags("mca prtemca pmixmca genv env"),
        short={"np": "n", "c": "n", "H": "host", "hosts": "host", "f": "hostfile",
               "machinefile": "hostfile", "N": "npernode", "perhost": "ppn", "wd": "wdir"},
    ),
    "deepspeed": Program(
        names="deepspeed",
        notes=(ADDS_LOCAL_RANK,),
        keys={
            "num-nodes": "nnodes",
            "num-gpus": "nproc_per_node",
            "hostfile": "hosts.inventory",
            "module": "=module",
        },
        flags=_flags("module no-python no-local-rank force-multi no-ssh"),
        short={"H": "hostfile", "i": "include", "e": "exclude"},
    ),
    "accelerate": Program(
        names="accelerate",
        verb="launch",
        keys={
            "num-processes": "=processes",
            "num-machines": "nnodes",
            "module": "=module",
            "max-restarts": "max_restarts",
            **_named(
                "mixed-precision gradient-accumulation-steps dynamo-backend use-fsdp use-deepspeed "
                "deepspeed-config-file use-cpu",
                "env.ACCELERATE_",
            ),
            "zero-stage": "env.ACCELERATE_DEEPSPEED_ZERO_STAGE",
            "num-cpu-threads-per-process": "env.OMP_NUM_THREADS",
            "debug": "env.ACCELERATE_DEBUG_MODE",
        },
        flags=_flags("multi-gpu module no-python use-fsdp use-deepspeed use-cpu quiet debug"),
        short={"m": "module", "q": "quiet", "cpu": "use-cpu"},
    ),
    "docker": Program(
        names="docker|podman",
        verb="run",
        has_secrets=True,
        keys={
            **_named("name workdir"),
            **_named("gpus entrypoint volume", "="),
            **_named("memory cpus", "resources."),
            "env": "=variable",
            "shm-size": "resources.shm",
            "runtime": "docker.runtime",
            "label": "docker.labels says it",
        },
        flags=_flags("rm detach interactive tty init privileged read-only"),
        short={"v": "volume", "e": "env", "w": "workdir", "m": "memory", "d": "detach", "t": "tty",
               "i": "interactive", "l": "label", "net": "network", "u": "user", "p": "publish"},
    ),
    "srun": Program(
        names="srun",
        keys={
            "job-name": "name",
            "nodes": "nnodes",
            "ntasks-per-node": "=tasks_per_node",
            "ntasks": "=tasks",
            "container-image": "=pyxis",
            "container-mounts": "=container_mounts",
            "gpus": "=all_gpus",
            **dict.fromkeys(["mail-type", "mail-user", "comment", "nodelist"], "=extra"),
            **_named(
                "gpus-per-node gres cpus-per-task partition account qos time constraint "
                "reservation exclude mem exclusive requeue",
                "slurm.",
            ),
        },
        flags=_flags("exclusive requeue no-requeue label no-kill unbuffered"),
        short={"J": "job-name", "N": "nodes", "n": "ntasks", "p": "partition", "A": "account",
               "t": "time", "c": "cpus-per-task", "C": "constraint", "o": "output", "e": "error",
               "x": "exclude", "w": "nodelist", "D": "chdir", "q": "qos", "G": "gpus",
               "a": "array", "r": "relative", "l": "label", "u": "unbuffered", "K": "kill-on-bad-exit"},
    ),
}  # fmt: skip
