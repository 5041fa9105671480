"""Tries out how hosts reach each other, and whether they see one folder: all at once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.contract.errors import TargetError
from launcher.targets.hosts.plan import Address
from launcher.targets.hosts.ssh import Session, Ssh

REACH_LIMIT_S = 5.0
TOKEN_LIMIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Met:
    """What came of it; hosts and ports by their place in what was asked.

    ``reached`` holds (from, to, address, port). ``seen`` says of each host whose files it saw in
    the folder. ``closed`` are (host, port) that could not be listened at, ``unwritten`` hosts
    that could not write to the folder, each with why.
    """

    reached: frozenset[tuple[int, int, str, int]]
    seen: tuple[frozenset[int], ...]
    closed: dict[tuple[int, int], TargetError]
    unwritten: dict[int, TargetError]


class Gathering:
    """Lets hosts call each other at ``ports`` (0: one that the kernel chooses).

    ``folders`` is the shared folder as each host has it, or empty. Ports stay open, and files
    there, as long as the ``sessions`` with the hosts, which are the caller's to close.
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

        ``keep_folders``: those that were made for the test stay, because a run is to have them.
        """
        places = range(len(self._sessions))
        opened = self._ssh.each(self._prepare, places)
        # One after the other: who looks for files greets nobody.
        reached = self._ssh.each(lambda place: self._call(place, opened), places)
        seen = self._ssh.each(self._look, places) if self._folders else [frozenset()] * len(places)
        if not keep_folders:
            self._ssh.each(lambda session: session.call("untoken"), self._sessions)
        return Met(
            reached=frozenset(call for calls in reached for call in calls),
            seen=tuple(seen),
            closed=self._closed,
            unwritten=self._unwritten,
        )

    def _name(self, place: int) -> str:
        return f".launcher-token-{self._said(place)}"

    def _said(self, place: int) -> str:
        """Each host's own: two may have the same address, of a bridge or a tunnel."""
        return f"{self._token}-{place}"

    def _prepare(self, place: int) -> dict[int, int]:
        """The ports that were opened, by their number in what was asked."""
        session, opened = self._sessions[place], {}
        for number, port in enumerate(self._ports):
            try:
                told = session.call("listen", token=self._said(place), port=port)
                opened[number] = told["port"]
            except TargetError as error:
                self._closed[place, number] = error
        if self._folders:
            try:
                session.call("token", folder=self._folders[place], name=self._name(place))
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
        asked = [(address, port, self._said(to)) for to, address, _, port in calls]
        answer = self._sessions[place].call("reach", calls=asked, wait_s=REACH_LIMIT_S)
        return [(place, *calls[i][:3]) for i in answer["reached"]]

    def _look(self, place: int) -> frozenset[int]:
        names = {self._name(p): p for p in range(len(self._sessions)) if p not in self._unwritten}
        answer = self._sessions[place].call(
            "tokens", folder=self._folders[place], names=list(names), wait_s=TOKEN_LIMIT_S
        )
        return frozenset(names[name] for name in answer["seen"])
