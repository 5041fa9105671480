"""Tests which hosts reach each other, and whether they share a folder, all at once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.contract.errors import TargetError
from launcher.targets.hosts.plan import Address
from launcher.targets.hosts.program import messages
from launcher.targets.hosts.ssh import Session, Ssh

REACH_LIMIT_S = 5.0
TOKEN_LIMIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Met:
    """The result; hosts and ports are given by their place in what was asked.

    ``reached`` holds (from, to, address, port). ``seen`` holds, for each host, the hosts whose
    files it saw in the folder. ``closed`` are the (host, port) that could not be opened,
    ``unwritten`` the hosts that could not write to the folder, each with its error.
    """

    reached: frozenset[tuple[int, int, str, int]]
    seen: tuple[frozenset[int], ...]
    closed: dict[tuple[int, int], TargetError]
    unwritten: dict[int, TargetError]


class Gathering:
    """Lets hosts call each other at ``ports`` (0: one that the kernel chooses).

    ``folders`` is the path of the shared folder on each host, or empty. Ports and files last as
    long as the ``sessions``, which the caller closes.
    """

    def __init__(
        self,
        ssh: Ssh,
        sessions: Sequence[Session],
        candidates: Sequence[Sequence[Address]],
        *,
        ports: Sequence[int] = (0,),
        folders: Sequence[str] = (),
    ) -> None:
        self._ssh, self._sessions, self._candidates = ssh, sessions, candidates
        self._ports, self._folders = ports, folders
        self._token = secrets.token_hex(8)
        self._closed: dict[tuple[int, int], TargetError] = {}
        self._unwritten: dict[int, TargetError] = {}

    def meet(self, *, keep_folders: bool) -> Met:
        """Blocks for some seconds. Raises ``TargetError`` where a host is gone.

        ``keep_folders``: folders that were made for the test stay for the run.
        """
        places = range(len(self._sessions))
        opened = self._ssh.each(self._prepare, places)
        # Not at the same time: a host that looks for files does not greet callers.
        reached = self._ssh.each(lambda place: self._call(place, opened), places)
        seen = self._ssh.each(self._look, places) if self._folders else [frozenset()] * len(places)
        if not keep_folders:
            self._ssh.each(lambda session: session.call(messages.RemoveTokens()), self._sessions)
        return Met(
            reached=frozenset(call for calls in reached for call in calls),
            seen=tuple(seen),
            closed=self._closed,
            unwritten=self._unwritten,
        )

    def _name(self, place: int) -> str:
        return f".launcher-token-{self._said(place)}"

    def _said(self, place: int) -> str:
        """The token of a host: two hosts may have the same address, of a bridge or a tunnel."""
        return f"{self._token}-{place}"

    def _prepare(self, place: int) -> dict[int, int]:
        """The ports that were opened, by their place in ``ports``."""
        session, opened = self._sessions[place], {}
        for number, port in enumerate(self._ports):
            try:
                asked = messages.Listen(token=self._said(place), port=port)
                opened[number] = session.call(asked).port
            except TargetError as error:
                self._closed[place, number] = error
        if self._folders:
            try:
                folder = self._folders[place]
                session.call(messages.LeaveToken(folder=folder, name=self._name(place)))
            except TargetError as error:
                self._unwritten[place] = error
        return opened

    def _call(
        self, place: int, opened: Sequence[dict[int, int]]
    ) -> list[tuple[int, int, str, int]]:
        calls = [
            (to, a.address, number, port)
            for to, ports in enumerate(opened)
            if to != place
            for a in self._candidates[to]
            for number, port in ports.items()
        ]
        called = [(address, port, self._said(to)) for to, address, _, port in calls]
        asked = messages.CallHosts(calls=called, wait_s=REACH_LIMIT_S)
        return [(place, *calls[i][:3]) for i in self._sessions[place].call(asked).places]

    def _look(self, place: int) -> frozenset[int]:
        names = {self._name(p): p for p in range(len(self._sessions)) if p not in self._unwritten}
        asked = messages.FindTokens(
            folder=self._folders[place], names=list(names), wait_s=TOKEN_LIMIT_S
        )
        return frozenset(names[name] for name in self._sessions[place].call(asked).names)
