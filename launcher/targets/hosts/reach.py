"""Tests which hosts reach each other, and whether they share a folder, all at once."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.contract.errors import TargetError
from launcher.targets.hosts.program import messages
from launcher.targets.hosts.program import reach as program
from launcher.targets.hosts.program.session import leave_token
from launcher.targets.hosts.ssh import Session, Ssh

REACH_LIMIT_S = 3.0
"""For one call: a kernel sends a lost first packet again after 1 s (RFC 6298)."""
TOKEN_LIMIT_S = 5.0

Way = tuple[int, int, str]
"""From, to, address; hosts by their place in the ``sessions`` of ``meet``."""


@dataclass(frozen=True, kw_only=True)
class Reachability:
    """The result of ``meet``; hosts by their place in its ``sessions``.

    ``reached`` holds each way that was open, and the caller's own address on it. ``seen`` holds,
    for each host, the hosts whose files it saw in the folder. ``unwritten`` are the hosts that
    could not write to the folder, each with its error.
    """

    reached: Mapping[Way, str]
    seen: tuple[frozenset[int], ...]
    unwritten: dict[int, TargetError]


def meet(
    ssh: Ssh,
    sessions: Sequence[Session],
    candidates: Sequence[Sequence[messages.Address]],
    folder: str | None,
    *,
    called: Sequence[int] | None = None,
) -> Reachability:
    """Has each host call the ``called`` hosts, or all others; blocks for seconds.

    A host is called at all its addresses, on a port that its kernel chooses. ``folder`` is the one
    that all hosts should share, if any. Ports and files last as long as the ``sessions``, which
    the caller closes. Raises ``TargetError`` if a host is gone.
    """
    secret = secrets.token_hex(8)
    # A token for each host: two hosts may have the same address, of a bridge or a tunnel.
    tokens = [f"{secret}-{place}" for place in range(len(sessions))]
    # First calls, then files: a host that looks for files does not greet callers.
    wanted = range(len(sessions)) if called is None else called
    reached = _call(ssh, sessions, candidates, tokens, wanted)
    seen, unwritten = _share(ssh, sessions, tokens, folder) if folder else ([], {})
    return Reachability(reached=reached, seen=tuple(seen), unwritten=unwritten)


def _call(
    ssh: Ssh,
    sessions: Sequence[Session],
    candidates: Sequence[Sequence[messages.Address]],
    tokens: Sequence[str],
    wanted: Sequence[int],
) -> dict[Way, str]:
    def listen(place: int) -> int:
        return sessions[place].call(program.listen, token=tokens[place])

    opened = dict(zip(wanted, ssh.each(listen, wanted), strict=True))

    def call(place: int) -> dict[Way, str]:
        ways = [(to, a.address) for to in wanted if to != place for a in candidates[to]]
        calls = [(address, opened[to], tokens[to]) for to, address in ways]
        answered = sessions[place].call(program.call_hosts, calls=calls, wait_s=REACH_LIMIT_S)
        return {(place, *ways[int(i)]): own for i, own in answered.items()}

    found = ssh.each(call, range(len(sessions)))
    return {way: own for ways in found for way, own in ways.items()}


def _share(
    ssh: Ssh, sessions: Sequence[Session], tokens: Sequence[str], folder: str
) -> tuple[list[frozenset[int]], dict[int, TargetError]]:
    places, unwritten = range(len(sessions)), {}
    names = [f".launcher-token-{token}" for token in tokens]

    def leave(place: int) -> None:
        try:
            sessions[place].call(leave_token, folder=folder, name=names[place])
        except TargetError as error:
            unwritten[place] = error

    ssh.each(leave, places)
    wanted = [names[place] for place in places if place not in unwritten]

    def find(session: Session) -> list[str]:
        return session.call(program.find_tokens, folder=folder, names=wanted, wait_s=TOKEN_LIMIT_S)

    found = ssh.each(find, sessions)
    return [frozenset(map(names.index, seen)) for seen in found], unwritten
