"""No node counts as lost while processors starve, packets are lost and every word takes 0.2 s.

Ten minutes in `make soak`, an hour by ``make soak SOAK_S=3600``, 20 s where it is called alone.
"""

import os
import shutil
import sys

import pytest

from tests.programs import run_program

SOAK_S = float(os.environ.get("LAUNCHER_SOAK_S", "20"))
NODES, BUSY = 8, 8
PROGRAM = """
import asyncio, contextlib, os, subprocess, sys, time
run_s, nodes, busy, delay_s = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), 0.2
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
lossy = ["-m", "statistic", "--mode", "random", "--probability", "0.05", "-j", "DROP"]
subprocess.run(["iptables", "-A", "INPUT", "-i", "lo", *lossy], check=True)
from launcher.agent.membership.client import Client
from launcher.agent.membership.process import serve_forked
from launcher.agent.membership.group import Rules

def rules(index):
    return Rules(min_nodes=1, max_nodes=nodes, node_index=index, last_call_s=60.0)

served = serve_forked(0, rules(0), "run", "token")

async def late(reader, writer):
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionResetError):  # a node ends with words unread
        while data := await reader.read(65536):
            loop.call_later(delay_s, writer.write, data)
    loop.call_later(delay_s, writer.close)

async def forward(reader, writer):
    theirs = await asyncio.open_connection("127.0.0.1", served.port)
    await asyncio.gather(late(reader, theirs[1]), late(theirs[0], writer))

async def proxy(write):
    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    os.write(write, str(server.sockets[0].getsockname()[1]).encode())
    await server.serve_forever()

def node(index, port):
    client = Client("127.0.0.1", port, "run", rules(index), "token")
    client.begin()
    sealed = client.meet()
    end = time.monotonic() + run_s
    try:
        while time.monotonic() < end:
            client.check()
            time.sleep(0.05)
        print(index, sealed.size, client.status.generation, list(client.losses), flush=True)
    finally:
        os.write(looked, b".")
    os.read(stay, 1)  # until all have looked: one that ends is a true loss to the others

read, write = os.pipe()
looks, looked = os.pipe()
stay, leave = os.pipe()
children = []
def fork(work, *given):
    children.append(pid := os.fork())
    if pid == 0:
        try:
            work(*given)
        finally:
            os._exit(0)

fork(lambda: asyncio.run(proxy(write)))
port = int(os.read(read, 16))
loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
for index in range(nodes):
    fork(node, index, port)
for _ in range(nodes):
    os.read(looks, 1)
os.write(leave, b"." * nodes)
for pid in children[1:]:
    os.waitpid(pid, 0)
for loop in loops:
    loop.kill()
os.kill(children[0], 9)
served.stop()
"""


@pytest.mark.xdist_group("false losses")
@pytest.mark.timeout(SOAK_S + 300)
@pytest.mark.skipif(
    shutil.which("iptables") is None or os.getuid() != 0,
    reason="losing packets needs iptables and root",
)
def test_a_starved_and_slow_network_loses_no_node():
    argv = ["unshare", "--net", sys.executable, "-c", PROGRAM, str(SOAK_S), str(NODES), str(BUSY)]
    done = run_program(argv, timeout=SOAK_S + 240)
    said = sorted(done.stdout.splitlines())
    assert said == [f"{index} {NODES} 1 []" for index in range(NODES)], done.stderr
