"""Several nodes on this machine, as one types them without a launcher: a torchrun for each.

``several_torchruns.py NODES TORCHRUN ... SCRIPT``: one worker on each; they meet through c10d.
"""

from __future__ import annotations

import socket
import subprocess
import sys


def main(nodes: str, *words: str) -> int:
    """The exit code of one that failed, else 0."""
    *torchrun, script = words
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [f"--nnodes={nodes}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=bench"]
    options += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
    started = [
        subprocess.Popen([*torchrun, *options, f"--rdzv-conf=is_host={int(node == 0)}", script])
        for node in range(int(nodes))
    ]
    return max(abs(one.wait()) for one in started)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
