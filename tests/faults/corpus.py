"""The faults that ``launcher why`` is measured by, and which of them are held out.

A fault is a row of a YAML file; its recording, in the archive of its part, is what ``launcher why``
is given. The name alone says, for ever, to which part a fault belongs: ``open/``, from which the
rules are built, or ``held_out/``, at which nobody looks who writes rules: neither at its rows,
scripts and recordings nor at what ``why`` says of them. Only the score counts those.
"""

import functools
import hashlib
import io
import lzma
import os
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

HERE = Path(__file__).parent
ANY = "any"
MADE_ON = ("processes", "torchrun", "docker", "hosts", "slurm", "kubernetes")
DOCUMENTED = "documented"


def held_out(name: str) -> bool:
    """True for a third of all names."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def part_of(name: str) -> Path:
    """The folder that a fault of this name belongs to."""
    return HERE / ("held_out" if held_out(name) else "open")


@functools.cache
def unpack(part: Path) -> Path:
    """The recordings of a part, in a folder that lasts as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="recordings-", ignore_cleanup_errors=True)
    _UNPACKED.append(folder)
    with tarfile.open(_archive_of(part)) as archive:
        archive.extractall(folder.name, filter="data")
        for name in archive.getnames():
            # Some rules ask which file is older. The recordings kept no times: theirs is the order
            # of the names, as in a checkout.
            os.utime(Path(folder.name, name))
    return Path(folder.name)


def pack(part: Path) -> None:
    """Puts what ``unpack`` gave, as it is now, into the part's archive."""
    folder, buffer = unpack(part), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            # Without owner, mode and time: the same files make the same archive.
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    _archive_of(part).write_bytes(lzma.compress(buffer.getvalue(), preset=9))


def _archive_of(part: Path) -> Path:
    return part / "recordings.tar.xz"


_UNPACKED: list[tempfile.TemporaryDirectory[str]] = []
"""A folder goes when its object does."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row. ``python -m tests.faults`` tells how a row is placed and recorded."""

    name: str
    done: str
    """One sentence: what was done to the run."""
    cause: str
    """A word of causes.yaml."""
    made: str
    """One of MADE_ON, or DOCUMENTED: then ``source`` says what the text follows."""
    also: tuple[str, ...] = ()
    """Words that are as right: what is left does not tell them apart."""
    node: int | Literal["any"] = ANY
    """Where it happened first; ``any`` where no node, or each one, is right."""
    rank: int | Literal["any"] = ANY
    source: str = ""
    script: str = ""
    """``train.py``. ``{START}`` stands for the usual first lines (``making.START``)."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files beside it, by name."""
    args: tuple[str, ...] = ()
    job: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the job file beside name and command; torchrun is given nnodes and nproc_per_node."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of whoever types the command."""
    around: tuple[str, ...] = ()
    """Names of functions in surroundings.py, each of which makes something around the run."""
    then: str = ""
    """What is done to the run once the script has written ``ready`` (a function there, too)."""

    limit_s: int = 240
    """From ``then``, or the start. A run that goes on is recorded as it is by then, and ended."""

    @property
    def recording(self) -> Path:
        """A run's folder, a folder of torchrun's logs, or one log: what ``why`` is given."""
        folder = unpack(part_of(self.name))
        log = folder / f"{self.name}.log"
        return log if log.exists() else folder / self.name

    @property
    def summary(self) -> Path:
        """What torchrun told at its end of the same fault, for those made on ``processes``."""
        return unpack(part_of(self.name)) / f"{self.name}.torchrun"

    @property
    def is_real(self) -> bool:
        return self.made != DOCUMENTED


def read_causes() -> dict[str, str]:
    """Each word and what it means."""
    return dict(yaml.safe_load((HERE / "causes.yaml").read_text()))


def read_faults(part: str) -> list[Fault]:
    """Those of one part, ``open`` or ``held_out``. Raises TypeError for a row with another key."""
    found = []
    for path in sorted((HERE / part).glob("*.yaml")):
        for name, row in (yaml.safe_load(path.read_text()) or {}).items():
            tuples = {f.name for f in fields(Fault) if str(f.type).startswith("tuple")}
            given = {key: tuple(v) if key in tuples else v for key, v in row.items()}
            found.append(Fault(name=name, **given))
    return found


def find_fault(name: str) -> Fault:
    """Raises KeyError where there is none of that name."""
    return {fault.name: fault for fault in read_faults(part_of(name).name)}[name]
