"""The addresses of this machine: which of them other nodes reach, and which networks, such as
Docker's, come last.

Standard library only; the program on hosts has this module too.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from launcher.contract.protocol import LOOPBACK as LOOPBACK

_SIOCGIFADDR = 0x8915
_LOCAL_NETWORKS = ("docker0", "docker_", "br-", "virbr", "veth", "cni", "podman", "lxc")
"""Interfaces of networks within this machine; many machines have the same addresses there."""


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    return ipaddress.ip_address(address).is_loopback


def own_addresses() -> tuple[str, ...]:
    """All addresses of this machine but the loopback's, those of local networks last."""
    entries: list[tuple[bool, bool, str]] = []
    for _, name in socket.if_nameindex():
        is_local = name.startswith(_LOCAL_NETWORKS)
        entries += [(is_local, ":" in text, text) for text in addresses_of(name)]
    entries.sort(key=lambda entry: entry[:2])
    return tuple(dict.fromkeys(text for *_, text in entries if not is_loopback(text)))


def addresses_of(interface: str) -> Iterable[str]:
    """All addresses of a network interface that mean something on other machines too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        request = struct.pack("256s", interface.encode()[:15])
        yield socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            # Link-local addresses mean nothing without their interface.
            if name == interface and scope == "00":
                yield str(ipaddress.IPv6Address(int(digits, 16)))


def address_towards(host: str) -> str:
    """This machine's own address on the route to ``host``; sends nothing. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Ended by the kernel, at once: connecting a datagram socket sends nothing.
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """The network interface that has the address; empty for the loopback, and where none has it."""
    try:
        if is_loopback(address):
            return ""
    except ValueError:  # a name
        return ""
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if address in addresses_of(name)), "")


def choose_address(peers: Iterable[str]) -> str:
    """The address under which other nodes reach this one.

    ``peers`` are addresses of the same cluster, if any are known. Returns the loopback only if this
    machine has no other address.
    """
    # The last is reserved for documentation: the way to it is the default route.
    for peer in (*peers, "192.0.2.1"):
        with contextlib.suppress(OSError, ValueError):
            if not is_loopback(address := address_towards(peer)):
                return address
    return next(iter(own_addresses()), LOOPBACK)


def name_machine() -> str:
    """Names this machine since its boot, and this process' network on it; empty if unknown.

    Processes with equal names share the loopback. Containers with a network of their own do not.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return ""
