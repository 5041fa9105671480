"""What this host has: processors, accelerators, addresses; and which hosts it reaches."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import resource
import select
import shutil
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from launcher.targets.hosts.program import commands
from launcher.targets.hosts.program.leases import LeaseBook
from launcher.targets.hosts.program.messages import HostReport, ReadHost

SIOCGIFADDR = 0x8915
RDMA_DEVICES = "/dev/infiniband"
CAP_IPC_LOCK = 14
SKIPPED = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "kube")
"""Interfaces with such names lead only to this host."""
CALLS_AT_ONCE = 256
"""A quarter of the usual limit of open descriptors."""
SETTLED_S = 1.5
"""How long to wait for more addresses once each host has answered at one: a kernel sends a lost
first packet again after 1 s (RFC 6298)."""
TORCH_VERSION = "from importlib.metadata import version; print(version('torch'))"


def read_host(asked: ReadHost) -> HostReport:
    """The host as the planner needs it."""
    python = shutil.which(os.path.expanduser(asked.python or "python3")) or ""
    gpus = read_gpus() if asked.gpus else []
    found = HostReport(
        host_name=socket.gethostname(),
        cpu_count=len(os.sched_getaffinity(0)),
        gpus=gpus,
        python=python,
        python_version=sys.version.split()[0],
        interfaces=read_interfaces(),
        state_dir=os.path.abspath(os.path.expanduser(asked.state_dir)),
        user=f"{os.getuid()}:{os.getgid()}",
        free_ports=[port for port in asked.ports if is_free(port)],
        leases=LeaseBook(asked.lease_dir).read(),
        rdma_devices=read_rdma_devices(),
        memlock_bytes=read_memlock_bytes(),
    )
    if asked.runtime == "docker":
        image = asked.image or f"{asked.own_image}:{'cuda' if gpus else 'cpu'}"
        return found.having(image=image, **read_docker(image))
    if asked.runtime == "python" and python:
        version = commands.read_output((python, "-c", TORCH_VERSION))
        return found.having(torch_version=(version or "").strip())
    return found


def read_gpus() -> list[str]:
    """Indices of NVIDIA GPUs, as nvidia-smi lists them."""
    text = commands.read_output(("nvidia-smi", "--query-gpu=index", "--format=csv,noheader"))
    return (text or "").split()


def read_rdma_devices(folder: str = RDMA_DEVICES) -> dict[str, bool]:
    """The devices of InfiniBand verbs, and whether this user may open each."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    devices = [os.path.join(folder, name) for name in sorted(names) if name.startswith("uverbs")]
    return {path: os.access(path, os.R_OK | os.W_OK) for path in devices}


def read_memlock_bytes(status: str = "/proc/self/status") -> int | None:
    """How much memory a process of this user may lock; None for no limit.

    The kernel ignores the limit with CAP_IPC_LOCK, which root has (capabilities(7)).
    """
    with suppress(OSError, ValueError), open(status) as file:
        effective = next(line.split()[1] for line in file if line.startswith("CapEff:"))
        if int(effective, 16) >> CAP_IPC_LOCK & 1:
            return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def read_docker(image: str) -> dict[str, str]:
    """The engine's version and the image's labels, empty where there are none."""
    version = commands.read_output(("docker", "version", "--format", "{{.Server.Version}}"))
    fields = "{{.Id}}\n{{json .Config.Labels}}"
    argv = ("docker", "image", "inspect", "--format", fields, image)
    found = commands.read_output(argv) if version else ""
    labels = (found or "").partition("\n")[2].strip()
    return {"docker": (version or "").strip(), "labels": labels}


def read_interfaces() -> list[tuple[str, str, int]]:
    """(interface, address, Mbit/s or 0) of every address that another host might reach."""
    found = []
    for _, name in socket.if_nameindex():
        if not name.startswith(SKIPPED):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, request)
                found.append((name, socket.inet_ntoa(answer[20:24]), read_speed(name)))
    with suppress(OSError), open("/proc/net/if_inet6") as table:
        for line in table:
            digits, _, _, scope, _, name = line.split()
            if scope == "00" and not name.startswith(SKIPPED):
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
                found.append((name, address, read_speed(name)))
    return found


def read_speed(interface: str) -> int:
    """The link's speed in Mbit/s; 0 where the driver does not report it."""
    with suppress(OSError, ValueError), open(f"/sys/class/net/{interface}/speed") as file:
        return max(0, int(file.read()))
    return 0


def is_free(port: int) -> bool:
    """Whether a TCP port is free on all addresses of this host."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class Listener:
    """An open port that greets callers with a token: they learn which addresses lead here."""

    def __init__(self, token: str, port: int = 0) -> None:
        """Raises ``OSError`` where ``port`` is taken."""
        self._token = token.encode()
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._socket = socket.create_server(
            ("", port), family=family, dualstack_ipv6=dual, backlog=512
        )
        self.port = self._socket.getsockname()[1]

    def fileno(self) -> int:
        return self._socket.fileno()

    def answer(self) -> None:
        """Greets the caller that waits."""
        with suppress(OSError):
            peer, _ = self._socket.accept()
            with peer:
                peer.sendall(self._token)


def read_reachable(
    calls: Sequence[Sequence[Any]], limit_s: float, listeners: Sequence[Listener] = ()
) -> list[int]:
    """Which of (address, port, token) answer with their token, by place in the list.

    The same token and port at several addresses is one host: once each host has answered at each
    of its ports, only ``SETTLED_S`` more are waited. Callers of ``listeners`` are greeted
    meanwhile, as they may be the hosts that are called here.
    """
    deadline = time.monotonic() + limit_s
    under_way = Calls(calls, limit_s, listeners)
    try:
        while under_way.go_on() and time.monotonic() < deadline:
            under_way.wait(deadline)
            if under_way.settled:
                deadline = min(deadline, time.monotonic() + SETTLED_S)
    finally:
        under_way.close()
    return sorted(under_way.reached)


class Calls:
    """Calls at many addresses, at most ``CALLS_AT_ONCE`` open at a time.

    A call that is silent for its share of the limit goes to the end of the queue, so that each is
    made at least once within the limit, however many never answer.
    """

    def __init__(
        self, calls: Sequence[Sequence[Any]], limit_s: float, listeners: Sequence[Listener]
    ) -> None:
        self._calls = calls
        self._share_s = limit_s / max(1, math.ceil(len(calls) / CALLS_AT_ONCE))
        self._queue = deque(range(len(calls)))
        self._untried = len(calls)
        self._missing = {(token, port) for _, port, token in calls}
        self._open: dict[int, tuple[socket.socket, int, float]] = {}
        # select takes no descriptor above 1023.
        self._poll = select.poll()
        self._listeners = {listener.fileno(): listener for listener in listeners}
        for number in self._listeners:
            self._poll.register(number, select.POLLIN)
        self.reached: list[int] = []

    @property
    def settled(self) -> bool:
        """Whether all hosts answered at all ports, and all addresses were tried."""
        return not self._missing and not self._untried

    def go_on(self) -> bool:
        """Makes calls while there is room; False when none is open."""
        while self._queue and len(self._open) < CALLS_AT_ONCE:
            self._untried = max(0, self._untried - 1)
            self._dial(self._queue.popleft())
        return bool(self._open)

    def wait(self, deadline: float) -> None:
        """Waits until an answer comes, or a call has had its share of the time."""
        _, _, oldest_at = next(iter(self._open.values()))
        until = min(deadline, oldest_at + self._share_s) if self._queue else deadline
        left_s = max(0.0, until - time.monotonic())
        for number, _ in self._poll.poll(math.ceil(left_s * 1000)):
            if number in self._listeners:
                self._listeners[number].answer()
            else:
                self._hear(number)
        late_at = time.monotonic() - self._share_s
        late = [n for n, (_, _, begun_at) in self._open.items() if begun_at <= late_at]
        for number in late[: len(self._queue)]:
            self._queue.append(self._hang_up(number))

    def close(self) -> None:
        for number in list(self._open):
            self._hang_up(number)

    def _dial(self, place: int) -> None:
        address, port, _ = self._calls[place]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            peer = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:  # a host without IPv6
                return
            raise
        peer.setblocking(False)
        if peer.connect_ex((address, port)) not in (0, errno.EINPROGRESS):
            peer.close()
            return
        self._open[peer.fileno()] = (peer, place, time.monotonic())
        self._poll.register(peer, select.POLLIN)

    def _hear(self, number: int) -> None:
        peer, place, _ = self._open[number]
        _, port, token = self._calls[place]
        with suppress(OSError):
            if peer.recv(256) == token.encode():
                self.reached.append(place)
                self._missing.discard((token, port))
        self._hang_up(number)

    def _hang_up(self, number: int) -> int:
        peer, place, _ = self._open.pop(number)
        self._poll.unregister(number)
        peer.close()
        return place
