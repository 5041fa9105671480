"""The program of a pod's init container: waits for the archive of the code, and unpacks it.

It runs by the image's Python alone. A second time it writes the same.
"""

import glob
import hashlib
import http.client
import io
import os
import random
import sys
import tarfile
import time

PEER_LIMIT_S = 5.0
RETRY_S = 1.0


def main(
    digest: str,
    folder: str,
    inner: str,
    pattern: str,
    limit: str = "0",
    port: str = "",
    *peers: str,
) -> None:
    """Joins the files of ``pattern`` in their order, and unpacks what has the ``digest``.

    Waits ``limit`` seconds for them. The launcher writes them, or another pod on a disk that both
    have, or they are got from the agent of one of the ``peers``, which answers at ``port``.
    """
    os.makedirs(os.path.dirname(pattern), exist_ok=True)
    deadline = time.monotonic() + float(limit)
    while hashlib.sha256(data := read(pattern)).hexdigest() != digest:
        if time.monotonic() >= deadline:
            fix = "start the run again" if float(limit) else "apply the whole manifest again"
            sys.exit(f"error: {pattern} is not the code of this run, {digest}\n  fix: {fix}")
        if not any(fetch(peer, int(port), pattern) for peer in random.sample(peers, len(peers))):
            time.sleep(RETRY_S)
    with tarfile.open(fileobj=io.BytesIO(data)) as code:
        # Python 3.11.2 of Debian 12 has no filters yet.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        code.extractall(folder, **safe)  # type: ignore[arg-type]
    os.makedirs(os.path.join(folder, inner), exist_ok=True)


def read(pattern: str) -> bytes:
    """The files one after the other; empty where there are none."""
    data = b""
    for part in sorted(glob.glob(pattern)):
        with open(part, "rb") as file:
            data += file.read()
    return data


def fetch(peer: str, port: int, path: str) -> bool:
    """Whether another pod has the archive, which then lies at ``path`` here."""
    try:
        connection = http.client.HTTPConnection(peer, port, timeout=PEER_LIMIT_S)
        connection.request("GET", f"/{os.path.basename(path)}")
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException):
        return False
    if answer.status == 200:
        with open(f"{path}.part", "wb") as file:
            file.write(data)
        os.replace(f"{path}.part", path)
    return answer.status == 200


if __name__ == "__main__":
    main(*sys.argv[1:])
