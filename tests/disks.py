"""Small disks that tests fill up: a tmpfs each, mounted in a folder of the test."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

BYTES = 8 << 20


class Disk:
    """A mounted disk; ``filler`` is the file that fills it up."""

    def __init__(self, path: Path) -> None:
        self.path, self.filler = path, path / "filler"

    def fill(self) -> None:
        """Leaves not a byte."""
        with self.filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        self.filler.unlink()

    def leftovers(self) -> list[str]:
        """Reserves, temporary files and empty records, none of which may stay behind."""
        found = [p for p in self.path.rglob("*") if p.is_file() and p.name != ".owner"]
        hidden = [str(p) for p in found if p.name.startswith((".", "tmp"))]
        return hidden + [str(p) for p in found if p.suffix == ".json" and p.stat().st_size == 0]


@contextlib.contextmanager
def mounted(path: Path, options: str = f"size={BYTES}") -> Iterator[Disk]:
    """Mounts one; it is gone afterwards, whatever still uses it."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(("mount", "-t", "tmpfs", "-o", options, "tmpfs", path), check=True)
    try:
        yield Disk(path)
    finally:
        subprocess.run(("umount", "--lazy", path), check=True)


def is_full(path: Path) -> bool:
    found = os.statvfs(path)
    return found.f_bavail == 0 or found.f_ffree == 0
