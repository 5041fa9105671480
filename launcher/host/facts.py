"""What this host is: its processors, accelerators, addresses, and what the others reach."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from launcher.host import commands
from launcher.host.leases import LeaseBook

SIOCGIFADDR = 0x8915
SKIPPED = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "kube")
"""Beginnings of the names of interfaces that lead to this host alone."""
TORCH_VERSION = "from importlib.metadata import version; print(version('torch'))"


def read_facts(asked: dict[str, Any]) -> dict[str, Any]:
    """The host as the planner needs it; ``asked`` names python, ports, lease_dir and runtime."""
    state_dir = os.path.abspath(os.path.expanduser(asked["state_dir"]))
    python = os.path.expanduser(asked["python"] or "python3")
    facts = {
        "host_name": socket.gethostname(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "gpus": read_gpus() if asked["gpus"] else [],
        "python": shutil.which(python) or "",
        "python_version": sys.version.split()[0],
        "interfaces": read_interfaces(),
        "state_dir": state_dir,
        "user": f"{os.getuid()}:{os.getgid()}",
        "free_ports": [port for port in asked["ports"] if is_free(port)],
        "leases": LeaseBook(asked["lease_dir"]).read(),
    }
    if asked["runtime"] == "docker":
        flavor = "cuda" if facts["gpus"] else "cpu"
        return {**facts, **read_docker(asked["image"] or f"{asked['own_image']}:{flavor}")}
    if facts["python"]:
        version = commands.read_output((facts["python"], "-c", TORCH_VERSION))
        facts["torch_version"] = (version or "").strip()
    return facts


def read_gpus() -> list[str]:
    """Ids of NVIDIA GPUs."""
    text = commands.read_output(("nvidia-smi", "--query-gpu=index", "--format=csv,noheader"))
    return (text or "").split()


def read_docker(image: str) -> dict[str, Any]:
    """The engine's version and the image's name and labels, empty where there are none."""
    version = commands.read_output(("docker", "version", "--format", "{{.Server.Version}}"))
    if not version:
        return {"docker": "", "image": image, "labels": ""}
    fields = "{{.Id}}\n{{json .Config.Labels}}"
    found = commands.read_output(("docker", "image", "inspect", "--format", fields, image))
    labels = (found or "").partition("\n")[2].strip()
    return {"docker": version.strip(), "image": image, "labels": labels}


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
    """Of the link, in Mbit/s; 0 where the driver does not tell."""
    with suppress(OSError, ValueError), open(f"/sys/class/net/{interface}/speed") as file:
        return max(0, int(file.read()))
    return 0


def is_free(port: int) -> bool:
    """Whether nobody listens on a TCP port of any of this host's addresses."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class Listener:
    """An open port that says who it is, so that others can find out which addresses lead here."""

    def __init__(self, token: str, port: int = 0) -> None:
        """Raises ``OSError`` where somebody else listens at ``port``."""
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
        """Greets one caller, who is known to be there."""
        with suppress(OSError):
            peer, _ = self._socket.accept()
            with peer:
                peer.sendall(self._token)


def read_reachable(
    calls: list[list[Any]], limit_s: float, listeners: Sequence[Listener] = ()
) -> list[int]:
    """Which of (address, port, token) answer with their token, by place in the list.

    All at once: with a hundred hosts, those that drop packets cost one limit together. Callers of
    ``listeners`` are greeted meanwhile: they may be those that are called here.
    """
    deadline = time.monotonic() + limit_s
    waiting: dict[socket.socket, int] = {}
    for place, (address, port, _) in enumerate(calls):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        peer = socket.socket(family, socket.SOCK_STREAM)
        peer.setblocking(False)
        if peer.connect_ex((address, port)) in (0, 115):
            waiting[peer] = place
        else:
            peer.close()
    reached = []
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        asked: list[Any] = [*waiting, *listeners]
        ready = select.select(asked, [], [], left_s)[0]
        for listener in listeners:
            if listener in ready:
                listener.answer()
        for peer in [peer for peer in waiting if peer in ready]:
            place = waiting.pop(peer)
            with suppress(OSError):
                if peer.recv(256) == calls[place][2].encode():
                    reached.append(place)
            peer.close()
    for peer in waiting:
        peer.close()
    return sorted(reached)
