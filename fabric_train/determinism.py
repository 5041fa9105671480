"""The same bits again: seeds that follow from a place in the training, torch's deterministic
kernels, and what else a result depends on besides options and data."""

from __future__ import annotations

import hashlib
import os
import platform
import random
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch

DEVICE_STRIDE = 0x9E3779B9
"""Difference between two devices' seeds; odd, so that no two devices get the same seed."""


def derive_seed(*place: int) -> int:
    """A 32-bit seed for a place such as (seed, step, rank).

    A hash and not a sum: sums collide. 32 bits, because torch's CPU generator ignores higher bits.
    numpy's SeedSequence would take 35 us between two micro-batches, this takes 7 us.
    """
    text = " ".join(map(str, place)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def seed_generators(*place: int) -> None:
    """Seeds Python's, numpy's and torch's generators for a place such as (seed, step, rank).

    Seeds CUDA's devices only if CUDA is in use, each with a seed of its own. Avoids
    torch.manual_seed, which looks for every backend: it takes 237 us instead of 2 us, and this runs
    for every virtual shard.
    """
    seed = derive_seed(*place)
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
        seed_other_devices(seed)


def seed_other_devices(seed: int) -> None:
    """Seeds all CUDA devices but the current one, on which a model's layers may lie too."""
    generators = torch.cuda.default_generators
    if len(generators) == 1:
        return
    current = torch.cuda.current_device()
    for index, generator in enumerate(generators):
        if index != current:
            # Not derive_seed, which takes 7 us for each device; `seed` is a hash already.
            generator.manual_seed((seed + index * DEVICE_STRIDE) % 2**32)


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
