"""Finds the telling lines of a log, of any size, within a bounded time and memory."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

HEAD_BYTES, TAIL_BYTES = 1 << 20, 4 << 20
"""Read of a file that is longer than both; a failure tells itself at the end, settings before."""
MOST_CHARACTERS = 2000
"""Of a line."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MOST_LINES = 2000
"""Kept of one file: the first half of them and the last."""

_TELLING = re.compile(
    rb"error|exception|no module|low on|not responding|deadline|fail"
    rb"|fatal|kill|abort|denied|refused|unable|cannot|could not|not found"
    rb"|no such|not available|invalid|illegal|time.?out|timed out|time limit|unreach|no route"
    rb"|warn|xid|ecc |nvlink|nan\b|\binf\b|oom|out of memory|no space|quota|too many|mismatch"
    rb"|already in use|signal|preempt|evict|cancelled|unschedulable|backoff|insufficient|taint"
    rb"|nccl|net/|proxy|heartbeat|hang|stuck|stall|slow|straggl|unexpected|usage:|differ|skew"
    rb"|interrupt|version|reset|closed|shutdown|unauthorized|lost|not ready|notready|down\b"
    rb"|requires|not supported|unavailable|waiting|exceeded|exit|clock|shm|bus |corrupt|truncated"
)
"""In a line in lower case; what holds none of these is not looked at again."""
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|^<|/launcher/agent|agent\.pyz")
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::|$)")
_PREFIXES = (
    re.compile(r"\[(?P<node>\d+)/(?P<rank>\d+)\] ?"),  # the launcher's
    re.compile(r"\[(?:rank|default|[a-z]\w*?)(?P<rank>\d+)\]: ?"),  # torch's, torchrun's
    re.compile(r" ?(?P<node>\d+): "),  # srun --label
    re.compile(r"\[pod/\S*?-(?P<node>\d+)(?:-\w{5})?/\S+\] "),  # kubectl logs --prefix
)
_TIMES = (
    re.compile(r"(\d{4})-(\d\d)-(\d\d)[T_ ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?"),
    re.compile(r"\b[IWEFC]()(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?"),
)


SETTING = "settings"
"""In place of a file: what the plan sets for the workers."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One telling line. ``number`` counts from 1 and is 0 behind a gap; ``at`` is 0 if not told.

    ``node`` and ``rank`` are those that wrote it. ``raised``: it names a traceback's exception,
    ``frame`` is the innermost place in the user's own code, ``is_own`` whether that raised it.
    """

    file: str
    number: int
    text: str
    node: int | None = None
    rank: int | None = None
    at: float = 0.0
    frame: str = ""
    is_own: bool = False
    raised: bool = False


def read_telling(path: Path, place: Line, most_bytes: int) -> tuple[list[Line], int]:
    """The telling lines of a file, and how many bytes of it were passed over.

    ``place`` says whose file it is, for lines that do not. Raises ``OSError``.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most_bytes:
            return tell_both(file.read(most_bytes), b"", place), 0
        head = file.read(min(HEAD_BYTES, most_bytes // 4))
        tail = min(most_bytes - len(head), TAIL_BYTES)
        file.seek(-tail, os.SEEK_END)
        return tell_both(head, file.read(tail), place), size - len(head) - tail


def read_stream(stream: BinaryIO, place: Line) -> tuple[list[Line], int, bytes]:
    """As ``read_telling``, of what comes until its writer has ended, or Ctrl-C ends the wait.

    The third is the end of the text.
    """
    head, tail, size = b"", b"", 0
    with contextlib.suppress(KeyboardInterrupt):
        # Ended by its writer, which a person may end.
        while chunk := stream.read(1 << 16):
            size += len(chunk)
            if len(head) < HEAD_BYTES:
                head += chunk
            else:
                tail += chunk
                tail = tail[-TAIL_BYTES:] if len(tail) > 2 * TAIL_BYTES else tail
    passed_over = size - len(head) - len(tail)
    if not passed_over:
        head, tail = head + tail, b""
    return tell_both(head, tail, place), passed_over, tail or head


def tell_both(head: bytes, tail: bytes, place: Line) -> list[Line]:
    """The telling lines of a text's begin and end, those that say something new."""
    found = list(find_telling(head.split(b"\n"), place))
    behind = tail.split(b"\n")[1:]
    return _keep([*found, *(replace(line, number=0) for line in find_telling(behind, place))])


def _keep(found: Iterable[Line]) -> list[Line]:
    """The first and the last of those that say something new, whatever their numbers are."""
    new: dict[tuple[object, ...], Line] = {}
    for line in found:
        key = (line.node, line.rank, re.sub(r"[\d.]+", "0", line.text))
        new.setdefault(key, line)
    kept = list(new.values())
    half = MOST_LINES // 2
    return kept if len(kept) <= MOST_LINES else kept[:half] + kept[-half:]


def find_telling(lines: Iterable[bytes], place: Line) -> Iterator[Line]:
    """The telling lines of a text, each with its place."""
    traces: dict[tuple[int | None, int | None], tuple[str, bool]] = {}
    for number, raw in enumerate(lines, 1):
        if not traces and not _TELLING.search(raw.lower()) and _TRACEBACK.encode() not in raw:
            continue
        text, node, rank = split_prefix(raw.decode(errors="backslashreplace").rstrip("\r"))
        who = (place.node if node is None else node, place.rank if rank is None else rank)
        here = replace(place, number=number, node=who[0], rank=who[1])
        if _TRACEBACK in text:
            traces[who] = ("", False)
        elif who in traces and text.startswith((" ", "\t")):
            if frame := _FRAME.match(text):
                is_own = not _LIBRARY.search(frame["file"])
                at = f"{os.path.basename(frame['file'])}:{frame['line']}"
                traces[who] = (at if is_own else traces[who][0], is_own)
        elif who in traces and _RAISED.match(text):
            frame_at, is_own = traces.pop(who)
            here = replace(here, frame=frame_at, is_own=is_own, raised=True)
            # After that of a DataLoader's worker its own traceback follows.
            if " in DataLoader worker process" not in text:
                yield replace(here, text=_COLOUR.sub("", text[:MOST_CHARACTERS]))
        elif _TELLING.search(raw.lower()):
            yield replace(here, text=_COLOUR.sub("", text[:MOST_CHARACTERS]), at=read_time(text))


def split_prefix(text: str) -> tuple[str, int | None, int | None]:
    """A line without what was put before it, and the node and rank that this names."""
    node: int | None = None
    rank: int | None = None
    for prefix in _PREFIXES:
        if found := prefix.match(text):
            text, numbers = text[found.end() :], found.groupdict()
            node = int(numbers["node"]) if numbers.get("node") else node
            rank = int(numbers["rank"]) if numbers.get("rank") else rank
    return text, node, rank


def read_time(text: str) -> float:
    """Seconds since the epoch as a line tells them, taken for UTC; 0 where it tells none."""
    for form in _TIMES:
        if found := form.search(text[:120]):
            y, *rest, part = found.groups()
            with contextlib.suppress(ValueError):
                form_of = "{}-{}-{}T{}:{}:{}+00:00".format(y or 1970, *rest)
                at = datetime.datetime.fromisoformat(form_of).timestamp()
                return at + float(f"0.{part or 0}")
    return 0.0
