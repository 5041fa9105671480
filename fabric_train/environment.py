"""What the bits of a result depend on beside options and data, and how to hold it still."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch


def make_deterministic() -> None:
    """Refuses kernels whose result depends on timing; for the rest of this process.

    To be called before anything is computed: cuBLAS reads its variable once.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def read_environment(device: torch.device) -> dict[str, str]:
    """What an exact training must find again when it resumes, by name; plain text, all of it.

    torch's version is of a type of its own, which a checkpoint could not be read back with.
    """
    on_cuda = device.type == "cuda"
    return {
        "torch": str(torch.__version__),
        "lightning": version_of("lightning"),
        "cuda": (on_cuda and torch.version.cuda) or "none",
        "cudnn": str(torch.backends.cudnn.version()) if on_cuda else "none",
        "device_model": torch.cuda.get_device_name(device) if on_cuda else platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }


def version_of(distribution: str) -> str:
    """An installed distribution's version, without importing it; ``none`` if there is none."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"
