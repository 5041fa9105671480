"""The program of a pod's init container: unpacks the archive of the code.

It runs by the image's Python alone. A second time it writes the same.
"""

import glob
import hashlib
import io
import os
import sys
import tarfile


def main(digest: str, folder: str, inner: str, pattern: str) -> None:
    """Joins the files of ``pattern`` in their order, and unpacks what has the ``digest``."""
    data = b"".join(read_part(part) for part in sorted(glob.glob(pattern)))
    if hashlib.sha256(data).hexdigest() != digest:
        fix = "apply the whole manifest again"
        sys.exit(f"error: {pattern} is not the code of this run, {digest}\n  fix: {fix}")
    with tarfile.open(fileobj=io.BytesIO(data)) as code:
        # Python 3.11.2 of Debian 12 has no filters yet.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        code.extractall(folder, **safe)  # type: ignore[arg-type]
    os.makedirs(os.path.join(folder, inner), exist_ok=True)


def read_part(path: str) -> bytes:
    """One part."""
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
