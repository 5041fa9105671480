"""What was discovered about a target: the planner's only input besides the job."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.plan.hosts import HostFacts


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How many processes, agents and workers together, one machine can reasonably start."""

    processes: int
    why: str
    """What bounds them, in words: ``2 CPU cores``."""


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """A target as it was when the plan was made.

    ``device_ids`` are the accelerators a job may use, empty on a CPU target; ``cpu_count`` is
    of one machine. ``image`` is the reference that containers start from, ``torch_version`` what
    its label (or the local interpreter) says, None where nobody knows; ``agent_in_image`` says that
    the image holds this launcher's node agent. ``python`` is the program
    that runs torchrun on local processes. ``run_root`` and ``cwd`` are absolute folders of the
    launcher's machine. ``free_port`` is a TCP port nobody listened on, for targets whose nodes
    share one network; ``spare_ports`` are more of them, for stores that take over. ``rdzv_host``
    and ``local_addr`` are node 0's and this node's address where a person starts nodes by hand.
    ``user`` is ``uid:gid`` of the caller, to whom files in mounts shall belong. ``capacity`` is of
    the one machine on which all nodes run, None where they run on several.

    Pods: ``node_names`` are the names at which nodes are reached, in order, where the target gives
    them. ``assigns_devices``: its scheduler gives nodes their accelerators. ``node_run_dir`` and
    ``node_checkpoint_dir`` are where a node finds them on storage of the target's own, None where
    they are folders of the launcher's machine; ``shares_storage`` says whether all nodes see the
    same.

    Hosts: ``hosts`` are the machines, one for each node in its order; ``code`` is the hash of the
    archive that is sent to them, ``cwd_in_code`` the caller's folder in it, ``interface`` the one
    by which a node reaches the others. ``runs_bare``: nodes are processes without a container.
    """

    target: str
    accelerator: str
    device_ids: tuple[str, ...] = ()
    cpu_count: int
    image: str | None = None
    torch_version: str | None = None
    cuda_version: str | None = None
    agent_in_image: bool = False
    python: str = "python3"
    run_root: str
    cwd: str
    free_port: int | None = None
    spare_ports: tuple[int, ...] = ()
    rdzv_host: str | None = None
    local_addr: str | None = None
    loopback_interface: str = "lo"
    user: str | None = None
    capacity: Capacity | None = None
    terminal: bool = False
    node_names: tuple[str, ...] = ()
    assigns_devices: bool = False
    node_run_dir: str | None = None
    node_checkpoint_dir: str | None = None
    shares_storage: bool = True
    interface: str | None = None
    hosts: tuple[HostFacts, ...] = ()
    code: str | None = None
    cwd_in_code: str = ""
    ssh_config: str | None = None
    runs_bare: bool = False
