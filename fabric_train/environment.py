"""What the bits of a result depend on besides options and data; makes torch deterministic."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch


def make_deterministic() -> None:
    """Makes torch refuse kernels whose result depends on timing, in this process from now on.

    Call it before anything is computed: cuBLAS reads its variable once.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Otherwise torch fills every new tensor first, which takes a twentieth of the digits model's
    # step. Only a program that reads memory before it has written there would notice.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def read_environment(device: torch.device) -> dict[str, str]:
    """What must be the same when an exact training resumes, by name, as plain text.

    torch's version is converted, because checkpoints are read without its special type.
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
