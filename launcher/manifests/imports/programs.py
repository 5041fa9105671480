"""Which key of a job file each option of torchrun and its kin becomes, and which have none.

Sources: ``torchrun --help`` (2.13), ``accelerate launch --help`` (1.x) and the variables that
``accelerate.utils.launch`` sets, ``horovodrun --help``, ``mpirun(1)`` of Open MPI, ``mpiexec`` of
Hydra, ``deepspeed --help``, ``docker run --help``, ``sbatch(1)``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

MEETING = "the launcher decides where and how the nodes meet"
RANK = "each node gets its rank from the launcher"
OUTPUT = "every worker's output is in the run folder, launcher logs shows it"
STARTS = "the launcher starts the workers itself"
BINDS = "the launcher does not bind processes to cores"
HOSTS = "launcher run --on hosts takes it, with names of hosts"
NOWHERE = "no key of a job file says this"
ADDS_LOCAL_RANK = (
    "--local_rank, which this program adds",
    "the launcher gives LOCAL_RANK in the environment, as torchrun does",
)
GIVEN = {
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT"), MEETING),
    **dict.fromkeys(("WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK"), RANK),
    "CUDA_VISIBLE_DEVICES": "set it in the environment of launcher run",
}
"""Variables that a launch line sets, and a job file does not."""

_LEFT = {
    MEETING: "rdzv-backend rdzv-endpoint rdzv-id rdzv-port standalone master-addr master-port "
    "is-host local-addr main-process-ip main-process-port main-process-addr same-network ssh-port "
    "start-timeout gloo check-build mca prtemca pmixmca prefix iface network",
    RANK: "node-rank machine-rank",
    OUTPUT: "log-dir redirects tee local-ranks-filter logs-specs output-filename verbose "
    "tag-output prepend-rank timestamp-output enable-each-rank-log quiet output error open-mode",
    STARTS: "compute-environment main-training-function no-python run-path use-env start-method "
    "monitor-interval allow-run-as-root launcher no-local-rank force-multi no-ssh multi-gpu "
    "distributed-type rm detach interactive tty init restart kill-on-bad-exit no-kill wait mpi "
    "unbuffered",
    BINDS: "bind-to map-by rank-by report-bindings bind-to-none nooversubscribe oversubscribe "
    "rankfile cpus-per-proc",
    HOSTS: "include exclude",
    "rdzv.conf has join_timeout, last_call_timeout and read_timeout": "rdzv-conf",
    "nnodes: MIN:MAX says it, in nodes": "min-np max-np",
    "import that file too, with the script behind --": "config-file",
    "CUDA_VISIBLE_DEVICES around launcher run says it": "gpu-ids",
    "write it under mounts: SOURCE:TARGET[:ro]": "mount",
    "docker.extra_hosts says it": "add-host",
    "docker.labels says it; srun's is always on": "label",
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
    what ``command_line`` does with it (``@machines``). ``flags`` take no value, ``twos`` take two.
    ``short``: the long names of short options. ``names`` is a pattern for the program's name,
    ``verb`` the word after it. ``notes``: what it does beyond its options, and who does that here.
    ``has_image``: an image follows the options, and then what the container runs.
    """

    names: str
    verb: str = ""
    keys: Mapping[str, str]
    flags: Collection[str] = ()
    twos: Collection[str] = ()
    short: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()
    has_image: bool = False


def _pairs(text: str, prefix: str = "") -> dict[str, str]:
    """Reads ``option=key``, or an option named like its key; each key begins with ``prefix``."""
    pairs = (word.partition("=")[::2] for word in text.split())
    return {name: prefix + (key or name.replace("-", "_")) for name, key in pairs}


_ALL = (
    Program(
        names="torchrun",
        keys=_pairs("nnodes nproc-per-node max-restarts module=@module"),
        flags=_pairs("standalone no-python module run-path use-env"),
        short=_pairs("m=module r=redirects t=tee"),
    ),
    Program(
        names="horovodrun",
        notes=(("horovod", "the script imports fabric_train.horovod: launcher docs horovod"),),
        keys=_pairs(
            "num-proc=@processes hosts=@machines hostfile=hosts.inventory reset-limit=max_restarts "
            "network-interfaces=env.NCCL_SOCKET_IFNAME"
        ),
        flags=_pairs("gloo mpi verbose check-build disable-cache"),
        short=_pairs("np=num-proc H=hosts p=ssh-port"),
    ),
    Program(
        names="mpirun|mpiexec",
        keys=_pairs(
            "n=@processes host=@machines hostfile=hosts.inventory npernode=nproc_per_node "
            "ppn=nproc_per_node x=@variable genv=@variable env=@variable wdir=workdir"
        ),
        flags=_pairs(
            "allow-run-as-root report-bindings oversubscribe nooversubscribe tag-output "
            "prepend-rank timestamp-output v verbose"
        ),
        twos=_pairs("mca prtemca pmixmca genv env"),
        short=_pairs(
            "np=n c=n H=host hosts=host f=hostfile machinefile=hostfile N=npernode perhost=ppn "
            "wd=wdir"
        ),
    ),
    Program(
        names="deepspeed",
        notes=(ADDS_LOCAL_RANK,),
        keys=_pairs(
            "num-nodes=nnodes num-gpus=nproc_per_node hostfile=hosts.inventory module=@module"
        ),
        flags=_pairs("module no-python no-local-rank force-multi no-ssh"),
        short=_pairs("H=hostfile i=include e=exclude"),
    ),
    Program(
        names="accelerate",
        verb="launch",
        keys={
            **_pairs("num-processes=@processes num-machines=nnodes module=@module max-restarts"),
            **_pairs(
                "mixed-precision=MIXED_PRECISION dynamo-backend=DYNAMO_BACKEND use-fsdp=USE_FSDP "
                "gradient-accumulation-steps=GRADIENT_ACCUMULATION_STEPS use-cpu=USE_CPU "
                "use-deepspeed=USE_DEEPSPEED deepspeed-config-file=DEEPSPEED_CONFIG_FILE "
                "zero-stage=DEEPSPEED_ZERO_STAGE debug=DEBUG_MODE",
                "env.ACCELERATE_",
            ),
            "num-cpu-threads-per-process": "env.OMP_NUM_THREADS",
        },
        flags=_pairs("multi-gpu module no-python use-fsdp use-deepspeed use-cpu quiet debug"),
        short=_pairs("m=module q=quiet cpu=use-cpu"),
    ),
    Program(
        names="docker|podman",
        verb="run",
        has_image=True,
        keys=_pairs(
            "name workdir gpus=@gpus entrypoint=@entrypoint volume=@volume env=@variable "
            "shm-size=resources.shm memory=resources.memory cpus=resources.cpus "
            "runtime=docker.runtime"
        ),
        flags=_pairs("rm detach interactive tty init privileged read-only"),
        short=_pairs(
            "v=volume e=env w=workdir m=memory d=detach t=tty i=interactive l=label net=network "
            "u=user p=publish"
        ),
    ),
    Program(
        names="srun",
        keys={
            **_pairs(
                "job-name=name nodes=nnodes ntasks-per-node=@tasks_per_node ntasks=@tasks "
                "container-image=@pyxis container-mounts=@container_mounts gpus=@all_gpus "
                "mail-type=@extra mail-user=@extra comment=@extra nodelist=@extra"
            ),
            **_pairs(
                "gpus-per-node gres cpus-per-task partition account qos time constraint "
                "reservation exclude mem exclusive requeue",
                "slurm.",
            ),
        },
        flags=_pairs("exclusive requeue no-requeue label no-kill unbuffered"),
        short=_pairs(
            "J=job-name N=nodes n=ntasks p=partition A=account t=time c=cpus-per-task C=constraint "
            "o=output e=error x=exclude w=nodelist D=chdir q=qos G=gpus a=array r=relative l=label "
            "u=unbuffered K=kill-on-bad-exit"
        ),
    ),
)
PROGRAMS = {program.names: program for program in _ALL}
"""The programs by the patterns of their names."""
