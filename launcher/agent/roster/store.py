"""The roster's keys in a ``torch.distributed.TCPStore``, and where that store runs.

The store is a small process forked from one that has already imported torch, so that it neither
shares the trainers' fate nor costs another interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from launcher.agent import processes, signals
from launcher.agent.roster import events
from launcher.agent.roster.membership import Phase, parse_head
from launcher.agent.roster.view import FINISHED_MARK, HEAD, SEATS, beat_key, status_in

TCPStore: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]
PrefixStore: Any = torch.distributed.PrefixStore  # type: ignore[attr-defined]
"""Untyped, because torch's stub knows neither ``append`` nor that values are bytes."""

READY_LIMIT_S = 10.0
SIGN_S = 1.0
TOKEN_KEY = "launcher/token"
STARTS = 3
"""How often to try a fork: next to threads, the child may find a lock that is held for ever."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a store listens, as a client reaches it."""

    host: str
    port: int


class StoreClient:
    """One connection to a run's keys; blocks, so only a thread that may hang uses it.

    A frozen server neither answers nor raises: a caller that needs an end keeps a timer. Every
    failure of the connection raises ``RendezvousConnectionError``.
    """

    def __init__(self, endpoint: Endpoint, run_id: str, timeout_s: float) -> None:
        self.endpoint = endpoint
        self._prefix = f"roster/{run_id}/"
        with _reaching(endpoint):
            self.store = TCPStore(
                endpoint.host,
                endpoint.port,
                is_master=False,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
            )

    def carry_out(self, action: events.StoreAction) -> events.Done | events.Values | events.Swapped:
        """Carries out one operation; returns the event that the state machine expects."""
        with _reaching(self.endpoint):
            match action:
                case events.Write(key, text):
                    self.store.set(self._prefix + key, text)
                    return events.Done()
                case events.Enlist(seat):
                    self.store.append(self._prefix + SEATS, seat + " ")
                    return events.Done()
                case events.Fetch(keys):
                    values = self.store.multi_get([self._prefix + key for key in keys])
                    return events.Values({k: v.decode() for k, v in zip(keys, values, strict=True)})
                case events.Swap(expected, desired):
                    text = self.store.compare_set(self._prefix + HEAD, expected, desired)
                    return events.Swapped(text.decode())

    def below(self) -> Any:
        """The run's keys as a ``torch.distributed.Store``."""
        return PrefixStore(self._prefix, self.store)

    def beats_of(self, seats: Sequence[str]) -> dict[str, str]:
        """The last beats of seats that exist."""
        answer = self.carry_out(events.Fetch(tuple(beat_key(seat) for seat in seats)))
        assert isinstance(answer, events.Values)
        return {seat: answer.values[beat_key(seat)] for seat in seats}

    def waiting(self) -> tuple[str, ...]:
        """The seats whose last word was that they wait to come in, lost ones included."""
        listed = self._read(SEATS).split()
        seats = tuple(dict.fromkeys(s for s in listed if s[0] != FINISHED_MARK))
        said = self.beats_of(seats)
        return tuple(seat for seat in seats if status_in(said[seat]).startswith("j"))

    def phase(self) -> Phase | None:
        """Where the run stands in this store; None where it has not begun here."""
        text = self._read(HEAD)
        return parse_head(text).phase if text else None

    def _read(self, key: str) -> str:
        """The value of a key; empty where it does not exist, for which ``get`` would wait."""
        with _reaching(self.endpoint):
            exists = self.store.check([self._prefix + key])
            return str(self.store.get(self._prefix + key).decode()) if exists else ""


@contextlib.contextmanager
def _reaching(endpoint: Endpoint) -> Iterator[None]:
    """Raises RendezvousConnectionError for whatever torch raises when a store is gone."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        where = f"{endpoint.host}:{endpoint.port}"
        raise RendezvousConnectionError(
            f"the rendezvous store at {where} is gone: {first_line}"
        ) from error


def find_store(candidates: Sequence[Endpoint], run_id: str, timeout_s: float) -> Endpoint | None:
    """The first candidate that serves this run already, if any.

    Asked before a node serves the run itself: otherwise a host that came back would start a second
    group. Takes at most ``timeout_s`` per candidate that answers to a connection.
    """
    for endpoint in candidates:
        with contextlib.suppress(RendezvousConnectionError):
            if _answers(endpoint, timeout_s) and _serves(endpoint, run_id, timeout_s):
                return endpoint
    return None


def _answers(endpoint: Endpoint, timeout_s: float) -> bool:
    """Whether something listens there; spares torch's retries, which warn at length."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s):
            return True
    except OSError:
        return False


def _serves(endpoint: Endpoint, run_id: str, timeout_s: float) -> bool:
    def ask() -> bool:
        return StoreClient(endpoint, run_id, timeout_s).phase() not in (None, Phase.CLOSED)

    return _asked_elsewhere(ask, timeout_s)


def has_token(endpoint: Endpoint, token: str, timeout_s: float) -> bool:
    """Whether the store that was started with this token answers there."""

    def ask() -> bool:
        store = StoreClient(endpoint, "", timeout_s).store
        return bool(store.check([TOKEN_KEY])) and store.get(TOKEN_KEY) == token.encode()

    return _asked_elsewhere(ask, timeout_s)


def _asked_elsewhere(ask: Callable[[], bool], timeout_s: float) -> bool:
    """Asks in a child process, because a frozen server would block this one for ever."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writer, b"1" if ask() else b"0")
        os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], timeout_s)
        # Ended by the kernel, at once: select has said that it is readable.
        return bool(ready) and os.read(reader, 1) == b"1"
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        # Ended by SIGKILL, sent in the line above.
        os.waitpid(child, 0)


@dataclass(frozen=True, kw_only=True)
class StoreProcess:
    """A running store; dies with the thread that started it, or by ``stop``."""

    pid: int
    port: int

    def stop(self) -> None:
        """Idempotent; returns when the process is gone."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            # Ended by SIGKILL, sent in the line above.
            os.waitpid(self.pid, 0)


@dataclass(frozen=True, kw_only=True)
class Sign:
    """How others recognise a store.

    ``token`` lies in the store. The store's process touches ``file`` every SIGN_S seconds, which
    tells those that cannot reach it that it lives.
    """

    token: str
    file: Path


def serve_forked(port: int, sign: Sign | None = None) -> StoreProcess:
    """Forks a store that listens on ``port`` (0: any free one) and returns when it does.

    Call it from the main thread of a process that has imported torch: the child dies with the
    calling thread. Raises ``RendezvousConnectionError`` when the port cannot be had.
    """
    said = ""
    for _ in range(STARTS):
        pid, said = _fork_store(port, sign)
        if said.isdigit():
            return StoreProcess(pid=pid, port=int(said))
        StoreProcess(pid=pid, port=port).stop()
        if said:
            break
    said = said or f"it did not start within {READY_LIMIT_S:g} s, {STARTS} times"
    raise RendezvousConnectionError(f"no rendezvous store can listen on port {port}: {said}")


def _fork_store(port: int, sign: Sign | None) -> tuple[int, str]:
    """The child's pid, and its port or why it has none; empty where it said nothing in time."""
    # Without gc.collect(), which takes 30 ms with torch's objects: they are unfrozen again below.
    gc.freeze()
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _serve(parent, port, writer, sign)
    os.close(writer)
    gc.unfreeze()
    ready, _, _ = select.select([reader], [], [], READY_LIMIT_S)
    # Ended by the kernel, at once: select has said that it is readable.
    said = os.read(reader, 4096).decode() if ready else ""
    os.close(reader)
    return pid, said


def _look_up_no_names() -> None:
    """Keeps this process from asking name servers.

    torch's server looks up the name of each caller as it accepts, in its only thread: a name server
    that is silent holds up everybody for many seconds. It needs no names, as it listens on all
    addresses. This is a function of glibc; where there is none, names are looked up.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).__nss_configure_lookup(b"hosts", b"files")


def _serve(parent: int, port: int, writer: int, sign: Sign | None) -> None:
    """The life of the store's process; never returns."""
    try:
        processes.die_with_parent(parent)
        # The parent's pipes and sockets would otherwise stay open as long as the store lives.
        processes.close_all_but([writer])
        for number in (*signals.ENDING, *signals.FOR_SCRIPTS):
            signal.signal(number, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _look_up_no_names()
        store = TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)
        if sign:
            store.set(TOKEN_KEY, sign.token)
        os.write(writer, str(store.port).encode())
        os.close(writer)
        while sign is None:
            # Ended by the agent, which kills the store's process or ends.
            signal.pause()
        while True:
            select.select((), (), (), SIGN_S)
            with contextlib.suppress(OSError):
                os.utime(sign.file)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(writer, str(error).partition("\n")[0].encode())
            sys.stderr.flush()
    os._exit(1)
