"""The program of a pod's init container: waits for the archive of the code, and unpacks it.

It runs by the image's Python alone. A second time it writes the same.
"""

import glob
import hashlib
import io
import os
import random
import shutil
import signal
import sys
import tarfile
import time
import urllib.request

PEER_LIMIT_S = 5.0
RETRY_S = 1.0


def main(digest: str, folder: str, inner: str, pattern: str, limit: str = "0", *urls: str) -> None:
    """Joins the files of ``pattern`` in their order, and unpacks what has the ``digest``.

    Waits ``limit`` seconds for them. The launcher writes them, or another pod on a disk that both
    have, or they are got from the agent of another pod, at one of the ``urls``.
    """
    # A container's first process hears no signal without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(os.path.dirname(pattern), exist_ok=True)
    deadline = time.monotonic() + float(limit)
    while hashlib.sha256(data := read(pattern)).hexdigest() != digest:
        if time.monotonic() >= deadline:
            fix = "start the run again" if float(limit) else "apply the whole manifest again"
            sys.exit(f"error: {pattern} is not the code of this run, {digest}\n  fix: {fix}")
        if not any(fetch(url, pattern) for url in random.sample(urls, len(urls))):
            time.sleep(RETRY_S)
    with tarfile.open(fileobj=io.BytesIO(data)) as code:
        # Python 3.11.2 of Debian 12 has no filters yet.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        code.extractall(folder, **safe)  # type: ignore[arg-type]
    os.makedirs(os.path.join(folder, inner), exist_ok=True)


def read(pattern: str) -> bytes:
    """The files one after the other; empty where there are none."""
    data = io.BytesIO()
    for part in sorted(glob.glob(pattern)):
        with open(part, "rb") as file:
            shutil.copyfileobj(file, data)
    return data.getvalue()


def fetch(url: str, path: str) -> bool:
    """Whether another pod has the archive, which then lies at ``path`` here."""
    # Whatever the image says of proxies, pods reach each other.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=PEER_LIMIT_S) as got, open(f"{path}.part", "wb") as file:
            shutil.copyfileobj(got, file)
    except OSError:
        return False
    os.replace(f"{path}.part", path)
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
