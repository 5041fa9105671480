"""Model and optimizer as named tensors, in files that any world size can read.

Built on ``torch.distributed.checkpoint`` (DCP): one rank writes a replicated state, all ranks write
a sharded one (FSDP2), and both load at every world size.
"""

from __future__ import annotations

import contextlib
import enum
import io
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from fabric_train.checkpointing.manifest import DamagedError
from fabric_train.communication.parts import Cut, find_cuts

MODEL, OPTIMIZER = "model.", "optimizer."
_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
CLOSES_STAGER = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)
"""torch 2.11 closes a stager after each use; a second use raises ``KeyError: <class 'type'>``."""
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninit")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """``tensors`` by name, live or staged; ``values``: the optimizer's numbers, as JSON values;
    ``cuts``: where tensors that are parts lie in the whole ones."""

    tensors: Mapping[str, torch.Tensor]
    values: Mapping[str, Any]
    cuts: Mapping[str, Cut] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The model's shapes, unsharded."""
        return {
            name: (
                self.cuts[name].whole_shape(tensor.shape)
                if name in self.cuts
                else list(tensor.shape)
            )
            for name, tensor in self.tensors.items()
            if name.startswith(MODEL)
        }


def is_state(name: str) -> bool:
    """Whether a checkpoint's tensor is the model's or the optimizer's."""
    return name.startswith((MODEL, OPTIMIZER))


def capture(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    whole: bool = False,
    only_trained: bool = False,
) -> Snapshot:
    """The current state by reference, under names that do not depend on wrappers such as DDP.

    Leaves out an optimizer that has made no step: torch would have to make one to know its state.
    ``whole`` allows that step, for a state that is overwritten afterwards. ``only_trained`` leaves
    out weights that need no gradient.
    """
    weights, moments = get_state_dict(
        model,
        optimizer if whole or optimizer.state else [],
        options=replace(_OPTIONS, ignore_frozen_params=only_trained),
    )
    flat: dict[str, Any] = {MODEL + name: value for name, value in weights.items()}
    flat |= {OPTIMIZER + name: value for name, value in moments.items()}
    tensors = {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}
    return Snapshot(
        tensors=tensors,
        values={name: value for name, value in flat.items() if name not in tensors},
        cuts=name_cuts(model, tensors),
    )


def name_cuts(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, Cut]:
    """The cuts of a model's weights, and of the optimizer's tensors that are cut like these."""
    named: dict[str, Cut] = {}
    for weight, cut in find_cuts(model).items():
        if MODEL + weight not in tensors:
            continue  # frozen
        shape, state = tensors[MODEL + weight].shape, f"{OPTIMIZER}state.{weight}."
        named[MODEL + weight] = cut
        named |= {
            name: cut
            for name, tensor in tensors.items()
            if name.startswith(state) and tensor.shape == shape
        }
    return named


def restore(snapshot: Snapshot, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Loads a state; its tensors must be shaped and sharded as those of ``capture``.

    Weights that were frozen when it was saved are not in it, and stay as they are.
    """
    flat: dict[str, Any] = {**snapshot.tensors, **snapshot.values}
    set_model_state_dict(model, _below(flat, MODEL), options=StateDictOptions(strict=False))
    # JSON has no tuples, and torch compares some of these values by type.
    moments: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in _below(flat, OPTIMIZER).items()
    }
    if moments:
        # A weight without a gradient so far has no state: it begins with zeros, as a new one.
        initial = get_optimizer_state_dict(model, optimizer, options=_OPTIONS)
        for name, value in initial.items():
            if name.startswith("state.") and isinstance(value, torch.Tensor):
                value = torch.zeros_like(value)
            moments.setdefault(name, value)
        set_optimizer_state_dict(model, optimizer, moments, options=_OPTIONS)


class StagedCopy:
    """Copies tensors into host memory, which it keeps for the next copy."""

    def __init__(self) -> None:
        self._stager: DefaultStager | None = None
        self.is_pinned = False

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A copy of the tensors, which overwrites the last copy."""
        if self._stager is None or CLOSES_STAGER:
            # Pinning makes a CUDA context, which a training on the CPU does not need.
            self.is_pinned = any(tensor.is_cuda for tensor in tensors.values())
            self._stager = open_stager(pinned=self.is_pinned)
        try:
            return self._stager.stage(dict(tensors))  # type: ignore[return-value]
        except RuntimeError:
            # Some virtual machines refuse to pin, and not all memory can be pinned.
            if not self.is_pinned:
                raise
            clear_cuda_error()
        self.is_pinned, self._stager = False, open_stager(pinned=False)
        return self._stager.stage(dict(tensors))  # type: ignore[return-value]


def open_stager(*, pinned: bool) -> DefaultStager:
    """A stager, which copies tensors into host memory; ``pinned`` memory is faster from a GPU."""
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=pinned,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
    )


def clear_cuda_error() -> None:
    """Runs a kernel, because the first one after a refused pinning raises the pinning's error."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")


def write_tensors(
    tensors: Mapping[str, torch.Tensor], folder: Path, group: dist.ProcessGroup | None
) -> None:
    """Writes a state's files into a new folder, and waits for the disk.

    ``group``: the CPU group of all ranks that hold shards; None if one rank holds the whole state.
    """
    save(
        dict(tensors),
        # Copies nothing ahead: torch would wait for the training's own stream at each tensor.
        storage_writer=FileSystemWriter(folder, overwrite=False, per_thread_copy_ahead=0),
        process_group=group,
        no_dist=group is None,
    )


def list_own_files(folder: Path, group: dist.ProcessGroup | None) -> list[str]:
    """The names of the files that ``write_tensors`` wrote on this rank."""
    names = sorted(path.name for path in folder.iterdir())
    if group is None:
        return names
    rank = dist.get_rank(group)
    mine = [name for name in names if name.startswith(f"__{rank}_")]
    return mine + ([".metadata"] if rank == 0 else [])


def read_tensors(
    folder: Path, wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, torch.Tensor]:
    """The wanted tensors of a checkpoint, unsharded, in CPU memory; a rank may call it alone."""
    tensors = allocate_tensors(folder, wanted)
    load(tensors, storage_reader=SafeReader(folder), no_dist=True)
    return tensors


def allocate_tensors(folder: Path, wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    """Uninitialised tensors with the shapes and types of a checkpoint's."""
    return {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in SafeReader(folder).read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata) and wanted(name)
    }


def read_shards(
    tensors: Mapping[str, torch.Tensor], folder: Path, group: dist.ProcessGroup | None
) -> None:
    """Loads this rank's shards into ``tensors``, in place; all ranks must call it."""
    reader = SafeReader(folder)
    known = reader.read_metadata().state_dict_metadata
    wanted = {name: tensor for name, tensor in tensors.items() if name in known}
    load(wanted, storage_reader=reader, process_group=group)


class SafeReader(FileSystemReader):
    """Reads DCP's index without running code that its pickle may hold."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index; raises DamagedError if it needs other types than DCP's."""
        content = (Path(self.path) / ".metadata").read_bytes()
        try:
            metadata = _SafeUnpickler(io.BytesIO(content)).load()
        except Exception as error:
            raise DamagedError(f".metadata cannot be read: {error}") from error
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata  # type: ignore[no-any-return]


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        allowed = name in _ALLOWED.get(module, ()) or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        )
        if not allowed:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong there")
        return super().find_class(module, name)


def _member(owner: Any, name: str) -> Any:
    """Some versions of Python, such as 3.11.2, pickle a member of an enum as a getattr."""
    if not (isinstance(owner, type) and issubclass(owner, enum.Enum)):
        raise pickle.UnpicklingError(f"getattr of {owner!r} does not belong there")
    return owner[name]


_ALLOWED = {
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "pathlib._local": ("PosixPath", "PurePosixPath", "WindowsPath"),  # Python 3.13
    "pathlib": ("PosixPath", "PurePosixPath", "WindowsPath"),
}


def _below(flat: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): value for name, value in flat.items() if name.startswith(prefix)
    }
