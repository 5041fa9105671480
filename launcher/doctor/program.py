"""The probe: runs in every worker in place of the job, describes its node, then measures an
all-reduce.

Standard library and torch only, because it is mounted into any image. It writes into
RUN_DIR/doctor: ``node-<index>.json`` on every node, ``all-reduce.json`` by rank 0. With the
argument ``node`` it only prints the description of the node.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import runpy
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from ctypes.util import find_library
from importlib import metadata, util
from pathlib import Path
from typing import Any

SMALLEST_BYTES = 1 << 12
"""Of the first message of the all-reduce."""
LARGEST_BYTES = 1 << 26
"""Of its last message."""
ENOUGH_S = 15
"""After so long no larger message is tried."""
COMMAND_LIMIT_S = 10
"""How long nvidia-smi and dmesg may take."""
REPETITIONS = 5
GPU_KEYS = {
    "index": "index",
    "name": "name",
    "driver_version": "driver_version",
    "bus_id": "pci.bus_id",
    "memory_used": "memory.used",
    "memory_total": "memory.total",
    "ecc_errors": "ecc.errors.uncorrected.volatile.total",
}
"""Our name of each GPU fact, and nvidia-smi's."""
SMI_QUERY = (f"--query-gpu={','.join(GPU_KEYS.values())}", "--format=csv,noheader,nounits")
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


def main() -> None:
    """Blocks until all workers are done; the launcher holds the deadline."""
    folder = Path(os.environ["RUN_DIR"], "doctor")
    folder.mkdir(exist_ok=True)
    index = os.environ["LAUNCHER_NODE_INDEX"]
    if os.environ["LOCAL_RANK"] == "0":
        _write(folder / f"node-{index}.json", read_node())
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rates = list(measure(torch, dist, device))
    if dist.get_rank() == 0:
        _write(folder / "all-reduce.json", {"backend": dist.get_backend(), "rates": rates})
    dist.destroy_process_group()


def read_node() -> dict[str, object]:
    """What this node is and has; ``None`` for what is not known."""
    shm = Path("/dev/shm")
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": _version("torch"),
        "cuda": _cuda(),
        "nccl": _nccl(),
        "shm_bytes": shutil.disk_usage(shm).total if shm.is_dir() else None,
        "memlock_bytes": _memlock_bytes(),
        "checkpoint_free_bytes": _free(os.environ["CHECKPOINT_DIR"]),
        "checkpoint_error": _write_error(os.environ["CHECKPOINT_DIR"]),
        "gpus": parse_gpus(_output("nvidia-smi", *SMI_QUERY)),
        "xids": parse_xids(_output("dmesg")),
        "infiniband": _infiniband(),
        "verbs_devices": any(Path("/dev/infiniband").glob("uverbs*")),
        "verbs_library": find_library("ibverbs") is not None,
        "nccl_env": {k: v for k, v in os.environ.items() if k in ("NCCL_IB_DISABLE", "NCCL_NET")},
    }


def measure(torch: Any, dist: Any, device: Any) -> Iterator[dict[str, float]]:
    """Bytes, seconds and bytes per second of one all-reduce, from small to large messages.

    The rate is the bus bandwidth of a ring: bytes * 2 (W - 1) / W / seconds (nccl-tests).
    """
    size, began = SMALLEST_BYTES, time.monotonic()
    world = dist.get_world_size()
    while size <= LARGEST_BYTES:
        tensor = torch.ones(size // 4, device=device)
        times = []
        for _ in range(REPETITIONS + 1):
            dist.barrier()
            start = time.monotonic()
            dist.all_reduce(tensor)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.monotonic() - start)
        took = sorted(times[1:])[REPETITIONS // 2]
        yield {"bytes": size, "took_s": took, "bytes_per_s": size * 2 * (world - 1) / world / took}
        enough = torch.tensor([float(time.monotonic() - began > ENOUGH_S)], device=device)
        dist.all_reduce(enough, op=dist.ReduceOp.MAX)
        if enough.item():
            return
        size *= 8


def _write(path: Path, value: object) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cuda() -> str | None:
    """What torch was built for, found without importing torch, which takes seconds."""
    with contextlib.suppress(Exception):
        spec = util.find_spec("torch")
        origin = Path(getattr(spec, "origin", None) or "")
        cuda = runpy.run_path(str(origin.with_name("version.py"))).get("cuda")
        return None if cuda is None else str(cuda)
    return None


def _nccl() -> str | None:
    names = (d.metadata["Name"] or "" for d in metadata.distributions())
    wheels = sorted(name for name in names if name.startswith("nvidia-nccl-"))
    return _version(wheels[0]) if wheels else None


def _memlock_bytes() -> int | None:
    """None for no limit, also if the process has CAP_IPC_LOCK."""
    cap_ipc_lock = 14
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", _text(Path("/proc/self/status")), re.MULTILINE)
    if match and int(match[1], 16) >> cap_ipc_lock & 1:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _infiniband() -> dict[str, bool]:
    """Devices, and whether a port of each is up."""
    return {
        device.name: any("ACTIVE" in _text(port) for port in device.glob("ports/*/state"))
        for device in sorted(Path("/sys/class/infiniband").glob("*"))
    }


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _free(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _write_error(folder: str) -> str:
    """Why nothing can be written there; empty if it can."""
    path = Path(folder, f".doctor-{os.getpid()}-{socket.gethostname()}")
    try:
        path.write_text("")
        path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _output(*command: str) -> str:
    """The program's stdout; empty if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def parse_gpus(text: str) -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU."""
    rows = (line.split(", ") for line in text.splitlines())
    # No strict=: the host's Python may be 3.9.
    return [dict(zip(GPU_KEYS, row)) for row in rows if len(row) == len(GPU_KEYS)]  # noqa: B905


def parse_xids(text: str) -> list[tuple[str, int]]:
    """(PCI address, number) of each kind of error that the driver wrote to the kernel's log."""
    return sorted({(bus.lower(), int(number)) for bus, number in XID.findall(text)})


if __name__ == "__main__":
    if sys.argv[1:] == ["node"]:
        sys.stdout.write(json.dumps(read_node()))
    else:
        main()
