"""What a node and the run's coordinator say to each other: lines of JSON, bounded in size.

Each side proves, by a number that the other made, that it knows the run's token.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any, BinaryIO

NODE_LIMIT = 16 * 1024
"""Bytes of a line that a node may send."""
COORDINATOR_LIMIT = 1024 * 1024
"""Bytes of a line that a coordinator may send: it names all lost nodes, at most."""
GREETING_LIMIT_S = 10.0
"""How long a connection may take to say who it is."""

Message = Mapping[str, Any]


class WireError(Exception):
    """What the other side said is no message, or it does not know the token."""


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":"), default=vars).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Raises ``WireError`` for anything but a whole line with a JSON object."""
    if not line.endswith(b"\n"):
        raise WireError("half a message")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise WireError("no message") from None
    if not isinstance(message, dict):
        raise WireError("no message")
    return message


def prove(token: str, nonce: str, who: str) -> str:
    """What shows to whoever has made ``nonce`` that ``who`` knows the token."""
    return hmac.new(token.encode(), f"{nonce} {who}".encode(), hashlib.sha256).hexdigest()


def check_proof(token: str, nonce: str, who: str, proof: object) -> None:
    """Raises ``WireError`` where the proof is another one."""
    if not hmac.compare_digest(prove(token, nonce, who), str(proof)):
        raise WireError("it does not know the run's token")


def greet(
    connection: socket.socket, *, run_id: str, token: str, name: str = ""
) -> tuple[str, Message, BinaryIO]:
    """Says to a coordinator who calls, within the connection's own limit.

    Returns its origin, its answer and what it says from then on. Without a name it ends the
    connection after its answer. Raises ``WireError`` or ``OSError``.
    """
    lines = connection.makefile("rb")
    try:
        # Ended by the connection's own limit.
        greeting = decode(lines.readline(NODE_LIMIT))
        origin, nonce = str(greeting["origin"]), secrets.token_hex(16)
        proof = prove(token, str(greeting["nonce"]), f"{run_id} {name}")
        # Ended by the connection's own limit.
        connection.sendall(encode({"name": name, "run": run_id, "nonce": nonce, "proof": proof}))
        # Ended by the connection's own limit.
        if not (line := lines.readline(NODE_LIMIT)):
            raise WireError("it ended the connection: another run, or another token")
        answer = decode(line)
        check_proof(token, nonce, origin, answer["proof"])
    except KeyError as error:
        raise WireError(f"its greeting has no {error}") from None
    return origin, answer, lines


def listen(port: int, host: str = "") -> socket.socket:
    """A socket that takes connections at ``port`` (0: any free one), on IPv4 and IPv6."""
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True
            )
    return socket.create_server((host, port), backlog=4096)
