"""What an API server does with ``exec``: a program of a container by a websocket, in channels.

The wire is RFC 6455's with one byte for the channel in front of each message. "v4.channel.k8s.io"
in k8s.io/apimachinery/pkg/util/remotecommand: 0 is stdin, which has no end, 2 stderr, and 3 tells
how the program ended. In v5, which kubectl speaks, 255 ends the channel that it names.
"""

import base64
import contextlib
import hashlib
import json
import os
import struct
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from typing import BinaryIO

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE = 1, 2, 8


def serve_exec(handler: BaseHTTPRequestHandler, program: subprocess.Popen[bytes]) -> None:
    """Stays until the program has ended."""
    key = handler.headers["Sec-WebSocket-Key"].encode()
    asked = handler.headers["Sec-WebSocket-Protocol"]
    protocol = next(one for one in PROTOCOLS if one in asked)
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    accept = base64.b64encode(hashlib.sha1(key + MAGIC).digest()).decode()
    handler.send_header("Sec-WebSocket-Accept", accept)
    handler.send_header("Sec-WebSocket-Protocol", protocol)
    handler.end_headers()
    reader = threading.Thread(target=_pass_on, args=(handler, program), daemon=True)
    reader.start()
    # Passed on while it runs: a person waits for it, and a pipe holds little.
    listener = threading.Thread(target=_show, args=(handler, program))
    listener.start()
    code = program.wait(600)
    assert program.stderr is not None
    with contextlib.suppress(OSError):
        listener.join(10)
        _write(handler, BINARY, b"\x02" + program.stderr.read())
        status: dict[str, object] = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            status = {"status": "Failure", "reason": "NonZeroExitCode"}
            status |= {"details": {"causes": causes}}
        _write(handler, BINARY, b"\x03" + json.dumps(status).encode())
        _write(handler, CLOSE, struct.pack(">H", 1000))
    reader.join(10)
    handler.close_connection = True


def _show(handler: BaseHTTPRequestHandler, program: subprocess.Popen[bytes]) -> None:
    assert program.stdout is not None
    with contextlib.suppress(OSError):
        while data := os.read(program.stdout.fileno(), 4096):
            _write(handler, BINARY, b"\x01" + data)


def _pass_on(handler: BaseHTTPRequestHandler, program: subprocess.Popen[bytes]) -> None:
    assert program.stdin is not None
    with contextlib.suppress(OSError, EOFError):
        while (frame := _read(handler.rfile))[0] != CLOSE:
            if frame[0] in (TEXT, BINARY) and frame[1][:1] == b"\x00":
                with contextlib.suppress(BrokenPipeError):
                    program.stdin.write(frame[1][1:])
                    program.stdin.flush()
            if frame[1] == b"\xff\x00":
                program.stdin.close()
    # As a runtime ends the input of a program whose client has gone.
    with contextlib.suppress(OSError):
        program.stdin.close()


def _read(stream: BinaryIO) -> tuple[int, bytes]:
    """A frame's opcode and its message; a client's frames are masked."""

    def take(size: int) -> bytes:
        if len(data := stream.read(size)) < size:
            raise EOFError
        return data

    first, second = take(2)
    size = second & 127
    if size > 125:
        (size,) = struct.unpack(">H" if size == 126 else ">Q", take(2 if size == 126 else 8))
    mask, data = take(4), take(size)
    whole = (mask * (size // 4 + 1))[:size]
    plain = int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")
    return first & 15, plain.to_bytes(size, "big")


def _write(handler: BaseHTTPRequestHandler, opcode: int, data: bytes) -> None:
    size = len(data)
    length = struct.pack(">B", size) if size < 126 else struct.pack(">BH", 126, size)
    handler.wfile.write(bytes([0x80 | opcode]) + length + data)
    handler.wfile.flush()
