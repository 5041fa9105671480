"""What must not hold the store up: the limit of open files, and name servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.programs import run_program

ROOT = Path(__file__).parents[5]
FEW = """
import resource, socket
from pathlib import Path
from launcher.agent.roster.store import Endpoint, StoreClient, serve_forked
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
process = serve_forked(0)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(200)]
client = StoreClient(Endpoint(host="127.0.0.1", port=process.port), "r", 20)
client.store.set("a", "1")
print(client.store.get("a").decode(), len(list(Path(f"/proc/{process.pid}/fd").iterdir())) > 200)
process.stop()
"""
SILENT = """
import os, socket, subprocess, sys
from pathlib import Path
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "10.99.0.1/32", "dev", "lo"], check=True)
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
server.setblocking(False)
for name, text in (("resolv.conf", "nameserver 127.0.0.1\\n"), ("nsswitch.conf", "hosts: dns\\n")):
    own = Path(sys.argv[1], name)
    own.write_text(text)
    subprocess.run(["mount", "--bind", own, f"/etc/{name}"], check=True)
from launcher.agent.roster.store import TCPStore, serve_forked
process = serve_forked(0)
client = subprocess.run(
    [sys.executable, "-c", CLIENT, str(process.port)], capture_output=True, text=True
)
print(client.stdout.strip(), client.stderr[-500:])
try:
    print("asked", server.recv(512))
except BlockingIOError:
    print("nobody asked")
process.stop()
""".replace(
    "CLIENT",
    repr(
        "import socket, sys, time\n"
        "s = socket.create_connection(('10.99.0.1', int(sys.argv[1])), timeout=30)\n"
        "time.sleep(1)\n"
        "print('accepted')\n"
    ),
)


def test_a_store_may_have_as_many_connections_as_the_hard_limit_allows() -> None:
    done = run_program([sys.executable, "-c", FEW], cwd=ROOT)
    assert done.stdout.split() == ["1", "True"], done.stderr


@pytest.mark.mount
def test_a_store_asks_no_name_server_who_calls(tmp_path: Path) -> None:
    argv = ["unshare", "--net", "--mount", sys.executable, "-c", SILENT, str(tmp_path)]
    done = run_program(argv, cwd=ROOT)
    assert "accepted" in done.stdout, done.stderr
    assert "nobody asked" in done.stdout, done.stdout
