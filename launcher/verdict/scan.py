"""Finds the telling lines of a log, of any size, within a bounded time and memory."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterable, Iterator, Sequence
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
    rb"^name:|error|exception|no module|low on|not responding|deadline|fail"
    rb"|fatal|kill|abort|denied|refused|unable|cannot|could not|not found"
    rb"|no such|not available|invalid|illegal|time.?out|timed out|time limit|unreach|no route"
    rb"|warn|xid|ecc |nvlink|nan\b|\binf\b|oom|out of memory|no space|quota|too many|mismatch"
    rb"|already in use|signal|preempt|evict|cancelled|unschedulable|backoff|insufficient|taint"
    rb"|nccl|net/|proxy|heartbeat|hang|stuck|stall|slow|straggl|unexpected|usage:|differ|skew"
    rb"|interrupt|version|reset|closed|shutdown|unauthorized|lost|not ready|notready|down\b"
    rb"|require|not supported|unavailable|waiting|exit|clock|shm|bus |corrupt|truncated"
    rb"|has no|has \d|held by|in use|must |does not|doesn't|can't|not in|unknown|undefined|no such"
    rb"|segfault|segmentation|panic|lockup|power|dead|free|fork|assert|interface|bootstrap|expected"
    rb"|manifest|plug|usage|exceed|valid|unrecog|blocked|\bpd\b|not enough|forbid|violat"
    rb"|multi-attach|out of|mount|pull|\boutof|remap|dump|launch|nodelist|^node:|assigned|told"
)
"""In a line in lower case; what holds none of these is not looked at again."""
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python3|/bin/\w+$|^<|launcher(?:_node)?/agent|agent\.pyz"
)
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::|$)")
_PREFIXES = (
    re.compile(r"\[(?P<node>\d+)/(?P<rank>\d+)\] ?"),  # the launcher's
    re.compile(r"\[(?:rank|default|[a-z]\w*?)(?P<rank>\d+)\]: ?"),  # torch's, torchrun's
    re.compile(r" ?(?P<node>\d+): "),  # srun --label
    re.compile(r"\[pod/(?P<pod>[^/]+)/\S+\] "),  # kubectl logs --prefix
)
_RANK_INSIDE = re.compile(r"\[(?:PG [^\]]*)?Rank (\d+)\]")
"""torch's own name of it, where nothing else names it."""
_POD_NAMED = re.compile(
    r"^Name: +(\S+)|\bpod/(\S+)|^([a-z0-9][a-z0-9-]*-\d+) +\d+/\d+ |pods? \"([a-z0-9-]+-\d+)\""
)
_POD = re.compile(r"(?:-(?P<role>master|worker))?-(?P<index>\d+)$")
_HOST_OF_NODE = (
    re.compile(r"^Node: +([\w.-]+)"),  # kubectl describe pod
    re.compile(r"Successfully assigned \S+ to ([\w.-]+)"),
    re.compile(r"^(?:\[[\d :-]+\] )?([\w.-]+):\d+:\d+ (?:\[\d+\] )?.*\bNCCL "),
)
_NODELIST = re.compile(r"NODELIST=([\w.,-]+)(?:\[([\d,-]+)\]([\w.-]*))?")
_TIMES = (
    re.compile(r"(\d{4})-(\d\d)-(\d\d)[T_ ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?"),
    re.compile(r"\b[IWEFC]()(\d\d?)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?"),
)


SETTING = "settings"
"""In place of a file: what the plan sets for the workers."""


@dataclass(frozen=True, kw_only=True)
class LogLine:
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
    pod: str = ""
    """The pod that it is about or of, as Kubernetes' own commands name it."""
    joined: bool = False
    """The recorders of all ranks say it together."""

    @property
    def is_told(self) -> bool:
        """Whether it tells what has happened, and not only what somebody has printed."""
        return self.raised or self.joined


def read_telling(path: Path, place: LogLine, most_bytes: int) -> tuple[list[LogLine], int]:
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


def read_stream(stream: BinaryIO, place: LogLine) -> tuple[list[LogLine], int, bytes]:
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


def tell_both(head: bytes, tail: bytes, place: LogLine) -> list[LogLine]:
    """The telling lines of a text's begin and end, those that say something new."""
    found = list(find_telling(head.split(b"\n"), place))
    behind = tail.split(b"\n")[1:]
    return _keep([*found, *(replace(line, number=0) for line in find_telling(behind, place))])


def _keep(found: Iterable[LogLine]) -> list[LogLine]:
    """The first and the last of those that say something new, whatever their numbers are."""
    new: dict[tuple[object, ...], LogLine] = {}
    for line in found:
        key = (line.node, line.rank, re.sub(r"[\d.]+", "0", line.text))
        new.setdefault(key, line)
    kept = list(new.values())
    half = MOST_LINES // 2
    return kept if len(kept) <= MOST_LINES else kept[:half] + kept[-half:]


def find_telling(lines: Iterable[bytes], place: LogLine) -> Iterator[LogLine]:
    """The telling lines of a text, each with its place."""
    traces: dict[tuple[int | None, int | None], tuple[str, bool]] = {}
    described = ""
    for number, raw in enumerate(lines, 1):
        if not traces and not _TELLING.search(raw.lower()) and _TRACEBACK.encode() not in raw:
            continue
        if b"frame #" in raw[:60]:
            continue  # of C++: it names every function that was ever called
        text, named = split_prefix(raw.decode(errors="backslashreplace").rstrip("\r"))
        if told := _POD_NAMED.search(text):
            pod = next(filter(None, told.groups()))
            described = pod if told[1] else described
        else:
            pod = described
        node = int(named["node"]) if "node" in named else place.node
        rank = int(named["rank"]) if "rank" in named else place.rank
        who, pod = (node, rank), named.get("pod") or pod
        here = replace(place, number=number, node=node, rank=rank, pod=pod)
        if _TRACEBACK in text:
            traces[who] = ("", False)
        elif who in traces and text.startswith((" ", "\t")):
            if frame := _FRAME.match(text):
                is_own = not LIBRARY.search(frame["file"])
                at = place_of(frame["file"], int(frame["line"]))
                traces[who] = (at if is_own else traces[who][0], is_own)
        elif who in traces and _RAISED.match(text):
            frame_at, is_own = traces.pop(who)
            here = replace(here, frame=frame_at, is_own=is_own, raised=True)
            # After that of a DataLoader's worker its own traceback follows.
            if " in DataLoader worker process" not in text:
                yield replace(here, text=_COLOUR.sub("", text[:MOST_CHARACTERS]))
        elif _TELLING.search(raw.lower()):
            yield replace(here, text=_COLOUR.sub("", text[:MOST_CHARACTERS]), at=read_time(text))


def place_of(file: str, line: int) -> str:
    """``train.py:88``, as people name a line of their own code."""
    return f"{os.path.basename(file)}:{line}"


def split_prefix(text: str) -> tuple[str, dict[str, str]]:
    """A line without what was put before it; and what this names: ``node``, ``rank``, ``pod``."""
    named: dict[str, str] = {}
    while found := next(filter(None, (prefix.match(text) for prefix in _PREFIXES)), None):
        text, named = text[found.end() :], {**found.groupdict(), **named}
    if "rank" not in named and (inside := _RANK_INSIDE.search(text)):
        named["rank"] = inside[1]
    return text, named


def name_nodes(lines: Sequence[LogLine]) -> list[LogLine]:
    """With the node of each pod, and of each host that a line with a node names. Pure.

    An operator's master is the first node, and worker 0 the second; Slurm numbers nodes in the
    order of its list.
    """
    placed = []
    for line in lines:
        if line.node is None and (found := _POD.search(line.pod)):
            line = replace(line, node=int(found["index"]) + (found["role"] == "worker"))
        placed.append(line)
    hosts: dict[str, int] = {}
    for line in placed:
        for form in _HOST_OF_NODE if line.node is not None else ():
            if found := form.search(line.text):
                hosts.setdefault(found[1], line.node or 0)
        if found := _NODELIST.search(line.text):
            hosts |= {name: node for node, name in enumerate(_expand(*found.groups("")))}
    if not hosts:
        return placed
    named = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, hosts))})(?![\w-])")
    for at, line in enumerate(placed):
        told = {hosts[name] for name in named.findall(line.text)} if line.node is None else ()
        if len(told) == 1:
            placed[at] = replace(line, node=min(told))
    return placed


def _expand(begin: str, listed: str, end: str) -> Iterator[str]:
    """The hosts of ``cn[130-132,140]``, or of ``a,b``, as Slurm writes them."""
    if not listed:
        yield from begin.split(",")
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", listed):
        for number in range(int(first), min(int(last or first), int(first) + MOST_LINES) + 1):
            yield f"{begin}{number:0{len(first)}}{end}"


def read_time(text: str) -> float:
    """Seconds since the epoch as a line tells them, taken for UTC; 0 where it tells none."""
    for form in _TIMES:
        if found := form.search(text[:120]):
            y, *rest, part = found.groups()
            with contextlib.suppress(ValueError):
                month, *others = rest
                form_of = "{}-{:0>2}-{}T{}:{}:{}+00:00".format(y or 1970, month, *others)
                at = datetime.datetime.fromisoformat(form_of).timestamp()
                return at + float(f"0.{part or 0}")
    return 0.0
