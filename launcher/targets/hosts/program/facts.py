"""What this host has: processors, GPUs, addresses and their speed, Docker, free ports; and what a
probe says of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path

from launcher.agent.addresses import addresses_of
from launcher.contract.process_stat import name_machine
from launcher.targets.hosts.program import processes
from launcher.targets.hosts.program.leases import read_leases
from launcher.targets.hosts.program.messages import TYPE_CHECKING, Address, HostReport
from launcher.targets.hosts.program.reach import nearest_folder
from launcher.targets.machine import is_free, read_gpus
from launcher.targets.subprocesses.short_command import read_output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NVIDIA_HOOK = "nvidia-container-runtime-hook"
SKIPPED = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "kube")
"""Interfaces with such names lead only to this host."""
TORCH_VERSION = "from importlib.metadata import version; print(version('torch'))"


def read_host(
    *,
    state_dir: str,
    lease_dir: str,
    python: str | None,
    ports: Sequence[int] = (),
    gpus: bool = True,
    runtime: str = "none",
    image: str = "",
    own_image: str = "",
) -> HostReport:
    """The host as the planner needs it.

    Tries ``ports``; looks up ``image``, or if empty ``own_image`` tagged ``cuda`` or ``cpu``.
    """
    python = shutil.which(os.path.expanduser(python or "python3")) or ""
    ids = read_gpus() if gpus else ()
    names = [name for _, name in socket.if_nameindex() if not name.startswith(SKIPPED)]
    report = HostReport(
        machine=name_machine(),
        cpu_count=len(os.sched_getaffinity(0)),
        gpus=ids,
        python=python,
        python_version=sys.version.split()[0],
        # Every address that another host might reach.
        interfaces=[_address(name, address) for name in names for address in addresses_of(name)],
        state_dir=os.path.abspath(os.path.expanduser(state_dir)),
        user=f"{os.getuid()}:{os.getgid()}",
        free_ports=[port for port in ports if is_free(port, "")],
        leases=read_leases(lease_dir),
        has_rdma=any(Path("/dev/infiniband").glob("uverbs*")),
    )
    if runtime == "docker":
        engine, runtimes = read_engine()
        image = image or f"{own_image}:{'cuda' if ids else 'cpu'}"
        id, torch = processes.inspect_image(image) if engine else ("", "")
        report = report.having(image=image, image_id=id, torch_version=torch)
        return report.having(docker=engine, runtimes=runtimes)
    if runtime == "python" and python:
        version = read_output((python, "-c", TORCH_VERSION))
        return report.having(torch_version=(version or "").strip())
    return report


def read_engine() -> tuple[str, list[str]]:
    """The version of the Docker engine, empty if none answers, and its runtimes.

    NVIDIA's hook counts as a runtime: engines call it for ``--gpus`` without its own runtime.
    """
    argv = ("docker", "info", "--format", "{{.ServerVersion}}\n{{json .Runtimes}}")
    version, _, runtimes = (read_output(argv) or "").partition("\n")
    hooks = [NVIDIA_HOOK] if shutil.which(NVIDIA_HOOK) else []
    return version, sorted(json.loads(runtimes.strip() or "null") or {}) + hooks


def _address(interface: str, address: str) -> Address:
    speed = 0
    # Some drivers do not report the link's speed.
    with suppress(OSError, ValueError), open(f"/sys/class/net/{interface}/speed") as file:
        speed = max(0, int(file.read()))
    return Address(interface=interface, address=address, speed=speed)


def run_probe(
    *,
    program: bytes,
    python: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    checkpoint_dir: str,
    wait_s: float,
) -> object:
    """Runs a Python program; returns the JSON that it prints. Raises ``OSError`` if it fails.

    ``checkpoint_dir`` may be missing: the program is given the nearest folder that is there.
    """
    env = {**os.environ, **env, "CHECKPOINT_DIR": str(nearest_folder(checkpoint_dir))}
    python = shutil.which(os.path.expanduser(python)) or python
    printed = read_output((python, "-c", program.decode(), *arguments), wait_s, env)
    if printed is None:
        raise OSError(f"{python} does not start, or takes longer than {wait_s:g} s")
    try:
        # The last line: start-up files of the user may print others before.
        answer: object = json.loads(printed.splitlines()[-1])
        return answer
    except (ValueError, IndexError):
        raise OSError(f"{python} printed {printed[:80]!r} instead of the probe's JSON") from None
