"""Tries out how hosts reach each other, and whether they see one folder: all at once."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from launcher.errors import TargetError
from launcher.hosts import Host
from launcher.hosts_plan import Address
from launcher.targets.ssh import Session, Ssh

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


@dataclass
class _Open:
    """One host with its ports open and its file written, as long as the session lasts."""

    session: Session
    ports: dict[int, int] = field(default_factory=dict)


class Gathering:
    """Lets hosts call each other at ``ports`` (0: one that the kernel chooses).

    ``folders`` is the shared folder as each host has it, or empty.
    """

    def __init__(
        self,
        ssh: Ssh,
        hosts: Sequence[Host],
        candidates: Sequence[Sequence[Address]],
        *,
        ports: Sequence[int] = (0,),
        folders: Sequence[str] = (),
    ) -> None:
        self._ssh, self._hosts, self._candidates = ssh, hosts, candidates
        self._ports, self._folders = ports, folders
        self._token = secrets.token_hex(8)
        self._open: list[_Open] = []
        self._closed: dict[tuple[int, int], TargetError] = {}
        self._unwritten: dict[int, TargetError] = {}

    def meet(self, *, keep_folders: bool) -> Met:
        """Blocks for some seconds. Raises ``TargetError`` where a host is gone.

        ``keep_folders``: those that were made for the test stay, because a run is to have them.
        """
        places = range(len(self._hosts))
        with contextlib.ExitStack() as stack:
            self._open = self._ssh.each(self._prepare, places)
            for opened in self._open:
                stack.callback(opened.session.close)
            answers = self._ssh.each(self._call, places)
            if not keep_folders:
                self._ssh.each(lambda opened: opened.session.call("untoken"), self._open)
        return Met(
            reached=frozenset(call for reached, _ in answers for call in reached),
            seen=tuple(seen for _, seen in answers),
            closed=self._closed,
            unwritten=self._unwritten,
        )

    def _name(self, place: int) -> str:
        return f".launcher-token-{self._token}-{place}"

    def _prepare(self, place: int) -> _Open:
        opened = _Open(self._ssh.open(self._hosts[place]))
        for number, port in enumerate(self._ports):
            try:
                answer = opened.session.call("listen", token=self._token, port=port)
                opened.ports[number] = answer["port"]
            except TargetError as error:
                self._closed[place, number] = error
        if self._folders:
            try:
                folder = self._folders[place]
                opened.session.call("token", folder=folder, name=self._name(place))
            except TargetError as error:
                self._unwritten[place] = error
        return opened

    def _call(self, place: int) -> tuple[list[tuple[int, int, str, int]], frozenset[int]]:
        calls = [
            (to, a.address, number, port)
            for to, opened in enumerate(self._open)
            if to != place
            for a in self._candidates[to]
            for number, port in opened.ports.items()
        ]
        asked = [(address, port, self._token) for _, address, _, port in calls]
        with self._ssh.open(self._hosts[place]) as session:
            answer = session.call("reach", calls=asked, wait_s=REACH_LIMIT_S)
            seen = self._look(place, session) if self._folders else frozenset()
        return [(place, *calls[i][:3]) for i in answer["reached"]], seen

    def _look(self, place: int, session: Session) -> frozenset[int]:
        names = {self._name(p): p for p in range(len(self._hosts)) if p not in self._unwritten}
        answer = session.call(
            "tokens", folder=self._folders[place], names=list(names), wait_s=TOKEN_LIMIT_S
        )
        return frozenset(names[name] for name in answer["seen"])
