"""What a worker of the contract's run finds in its environment: one list for every target."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType

OURS = re.compile(
    "RANK|WORLD_SIZE|NODE_RANK|(LOCAL|GROUP|ROLE|MASTER|TORCH|PET|LT|LAUNCHER|OMP)_.*|TORCH.*"
    "|RUN_DIR|CHECKPOINT_DIR|PYTHONUNBUFFERED"
)
"""What a launcher, an operator, torchrun, Fabric or the job itself sets."""
RUN, NODE = "*/runs/{run}", "nodes/{rank}/0"
COUNT = "[0-9]"
"""A machine that is too busy for a node's heartbeats starts the group once more."""
EVERYWHERE = {
    "RANK": "{rank}",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "{rank}",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_NAME": "default",
    "ROLE_RANK": "{rank}",
    "ROLE_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "[1-9]*",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "RUN_DIR": RUN,
    "CHECKPOINT_DIR": f"{RUN}/checkpoints",
    "LAUNCHER_AGENT_SOCKET": "/*/agent",
    "LAUNCHER_ASKED_FILE": "/*/asked-heartbeat-0-{rank}",
    "LAUNCHER_ATTEMPT": "0",
    "LAUNCHER_GENERATION": COUNT,
    "LAUNCHER_HEARTBEAT": "/*/heartbeat-0-{rank}",
    "LAUNCHER_INCARNATION": "0",
    "LAUNCHER_JOINS": "0",
    "LAUNCHER_MAX_WORLD_SIZE": "2",
    "LAUNCHER_NODE_ATTEMPT": COUNT,
    "LAUNCHER_NODE_DIR": f"{RUN}/{NODE}",
    "LAUNCHER_NODE_INDEX": "{rank}",
    "LAUNCHER_PROGRESS": "lines",
    "LAUNCHER_RDZV_BACKEND": "roster",
    "LAUNCHER_RDZV_ENDPOINT": "127.0.0.1:[1-9]*",
    "LAUNCHER_RUN_ID": "{run}",
    "LAUNCHER_STOP_GRACE_S": "5",
    "TORCHELASTIC_ERROR_FILE": f"{RUN}/{NODE}/attempt-[0-9]/rank-{{rank}}/error.json",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": COUNT,
    "TORCHELASTIC_RUN_ID": "{run}",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "TORCH_FR_BUFFER_SIZE": "200",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
"""The pattern of each value, on a target that says nothing else."""
IN_CONTAINERS = {
    "RUN_DIR": "/launcher/run",
    "CHECKPOINT_DIR": "/launcher/checkpoints",
    "LAUNCHER_NODE_DIR": f"/launcher/run/{NODE}",
    "TORCHELASTIC_ERROR_FILE": f"/launcher/run/{NODE}/attempt-[0-9]/rank-{{rank}}/error.json",
}
BY_NETWORK = {
    "MASTER_ADDR": "[1-9]*.*.*.[1-9]*",
    "LAUNCHER_RDZV_ENDPOINT": "[1-9]*.*.*.[1-9]*:[1-9]*",
}
DIFFERENCES = {
    "docker": {
        **IN_CONTAINERS,
        "MASTER_ADDR": "{run}-0",
        "LAUNCHER_RDZV_ENDPOINT": "{run}-0:29400",
    },
    "kubernetes": {
        **IN_CONTAINERS,
        "MASTER_ADDR": "[1-9]*.*.*.[1-9]*",
        "LAUNCHER_RDZV_ENDPOINT": "train-0.train:29400",
    },
    "hosts": {"CHECKPOINT_DIR": "*/checkpoints/{run}", **BY_NETWORK},
    "slurm": {"LAUNCHER_STOP_FILE": f"{RUN}/slurm/*.stop", **BY_NETWORK},
}
"""What is another value on a target: its own addresses and folders."""


def check_environment(
    target: str,
    run_id: str,
    rank: int,
    found: dict[str, str],
    own: Mapping[str, str | None] = MappingProxyType({}),
) -> None:
    """The names are those of the list, and so are the values but for the target's ``own``.

    A name of ``own`` whose value is None is not there.
    """
    given = EVERYWHERE | DIFFERENCES.get(target, {}) | own
    expected = {name: value for name, value in given.items() if value is not None}
    assert {*found} == {*expected}, {*found} ^ {*expected}
    patterns = {name: one.format(run=run_id, rank=rank) for name, one in expected.items()}
    others = {
        name: value for name, value in found.items() if not fnmatchcase(value, patterns[name])
    }
    assert not others, others
