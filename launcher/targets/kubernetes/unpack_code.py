"""The program of a pod's init container: reads the archive of the code, checks it, unpacks it.

It runs by the image's Python alone. A second time it writes the same.
"""

import glob
import hashlib
import io
import os
import sys
import tarfile

FIX = "apply the whole manifest again, which has the ConfigMaps too"


def main(digest: str, folder: str, inner: str, pattern: str) -> None:
    """Joins the files of ``pattern`` in their order, and unpacks what has the ``digest``."""
    data = b""
    for part in sorted(glob.glob(pattern)):
        with open(part, "rb") as file:
            data += file.read()
    if hashlib.sha256(data).hexdigest() != digest:
        sys.exit(f"error: {pattern} is not the code of this run (sha256 {digest})\n  fix: {FIX}")
    with tarfile.open(fileobj=io.BytesIO(data)) as code:
        # Python 3.11.2 of Debian 12 has no filters yet.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        code.extractall(folder, **safe)  # type: ignore[arg-type]
    os.makedirs(os.path.join(folder, inner), exist_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
