"""Finds the telling lines of a log, of any size, within a bounded time and memory."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

HEAD_BYTES, TAIL_BYTES = 1 << 20, 4 << 20
"""Read of a file that is longer than both; a failure tells itself at the end, settings before."""
MOST_CHARACTERS = 2000
"""Of a line."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MOST_LINES = 2000
"""Kept of one file: the first half of them and the last."""

_TELLING = re.compile(
    rb"^name:|traceback|error|exception|no module|low on|not responding|deadline|fail"
    rb"|fatal|kill|abort|denied|refuse|unable|cannot|could not|not found"
    rb"|no such|not available|invalid|illegal|time.?out|timed out|time limit|unreach|no route"
    rb"|warn|xid|ecc |nvlink|nan\b|\binf\b|oom|out of memory|no space|quota|too many|mismatch"
    rb"|already in use|signal|preempt|evict|cancelled|unschedulable|backoff|insufficient|taint"
    rb"|nccl|net/|proxy|heartbeat|hang|stuck|stall|slow|straggl|unexpected|usage:|differ|skew"
    rb"|interrupt|version|reset|closed|shutdown|unauthorized|lost|not ready|notready|down\b"
    rb"|require|not supported|unavailable|waiting|exit|clock|shm|bus |corrupt|truncated"
    rb"|has no|has \d|held by|in use|must |does not|doesn't|can't|not in|unknown|undefined|no such"
    rb"|segfault|segmentation|panic|lockup|power|dead|free|fork|assert|interface|bootstrap|expected"
    rb"|manifest|plug|usage|exceed|valid|unrecog|blocked|\bpd\b|not enough|forbid|violat"
    rb"|multi-attach|out of|mount|pull|\boutof|remap|dump|launch|nodelist|^node:|nproc|pending"
    rb"|^ *host +:"
)
"""In a line in lower case; what holds none of these is not looked at again."""
_NUMBERS = dict.fromkeys(map(ord, "0123456789."))
_OF_LOADER = " in DataLoader worker process"
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
    re.compile(r"^[a-z0-9-]+-\d+ +\d+/\d+ .* (?:[\d.]+|<none>) +([a-z0-9][\w.-]+)"),  # get pods
    re.compile(r"^ *host +: ([\w.-]+)"),  # torchrun's report
    re.compile(r"Successfully assigned \S+ to ([\w.-]+)"),
    re.compile(r"^(?:\[[\d :-]+\] )?([\w.-]+):\d+:\d+ (?:\[\d+\] )?.*\bNCCL "),
)
_NPROC = re.compile(r"\bnproc[_-]per[_-]node[ =:]+(\d+)")
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
    """It is so at this moment: the recorders of all ranks say it together, or the kernel."""

    @property
    def is_told(self) -> bool:
        """Whether it tells what has happened, and not only what somebody has printed."""
        return self.raised or self.joined


def read_both(file: BinaryIO, most_bytes: int) -> tuple[bytes, bytes, int]:
    """A text's begin and its end, which is empty where the begin is all, and the bytes between.

    A pipe is read until its writer has ended, or Ctrl-C ends the wait. Raises ``OSError``.
    """
    if file.seekable():
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(most_bytes if size <= most_bytes else min(HEAD_BYTES, most_bytes // 4))
        file.seek(max(len(head), size - min(most_bytes - len(head), TAIL_BYTES)))
        tail = file.read(TAIL_BYTES)
        return head, tail, size - len(head) - len(tail)
    head, tail, size = b"", b"", 0
    with contextlib.suppress(KeyboardInterrupt):
        # Ended by its writer, which a person may end.
        while chunk := file.read(1 << 16):
            size += len(chunk)
            head, tail = (head + chunk, b"") if len(head) < HEAD_BYTES else (head, tail + chunk)
            tail = tail[-TAIL_BYTES:] if len(tail) > 2 * TAIL_BYTES else tail
    passed_over = size - len(head) - len(tail)
    return (head, tail, passed_over) if passed_over else (head + tail, b"", 0)


def tell_both(head: bytes, tail: bytes, place: LogLine) -> list[LogLine]:
    """The telling lines of a text's begin and end: the first and last that say something new.

    ``place`` says whose text it is, for lines that do not.
    """
    kept = list(find_telling(head.split(b"\n"), place))
    seen = {(line.raised, line.text) for line in kept}
    behind = find_telling(tail.split(b"\n")[1:], place)
    kept += [replace(line, number=0) for line in behind if (line.raised, line.text) not in seen]
    half = MOST_LINES // 2
    return kept if len(kept) <= MOST_LINES else kept[:half] + kept[-half:]


def find_telling(lines: Iterable[bytes], place: LogLine) -> Iterator[LogLine]:
    """The telling lines of a text, each with its place; those that differ by numbers alone once."""
    traces: dict[tuple[object, ...], tuple[str, bool]] = {}
    seen: set[tuple[object, ...]] = set()
    described = place.pod
    for number, raw in enumerate(lines, 1):
        is_telling = _TELLING.search(raw.lower()) is not None
        if not (is_telling or traces) or b"frame #" in raw[:60]:
            continue  # The frames of C++ name every function that was called.
        text, named = split_prefix(raw.decode(errors="backslashreplace").rstrip("\r"))
        told = _POD_NAMED.search(text)
        pod = next(filter(None, told.groups())) if told else described
        described = pod if told and told[1] else described
        node = int(named["node"]) if "node" in named else place.node
        rank = int(named["rank"]) if "rank" in named else place.rank
        who = (node, rank, named.get("pod") or pod)
        at, is_own = traces.get(who, ("", False))
        if _TRACEBACK in text:
            traces[who] = ("", False)
            continue
        if who in traces and text.startswith((" ", "\t")):
            if frame := _FRAME.match(text):
                is_own = not LIBRARY.search(frame["file"])
                own_at = place_of(frame["file"], int(frame["line"]))
                traces[who] = (own_at if is_own else at, is_own)
            continue
        raised = who in traces and _RAISED.match(text) is not None
        key = (*who, raised, text.translate(_NUMBERS))
        if raised:
            del traces[who]
        # After the exception of a DataLoader's worker its own traceback follows.
        if key in seen or not (raised or is_telling) or _OF_LOADER in text:
            continue
        seen.add(key)
        yield replace(
            place,
            number=number,
            text=_COLOUR.sub("", text[:MOST_CHARACTERS]),
            node=node,
            rank=rank,
            pod=who[2],
            at=place.at if raised else read_time(text),
            frame=at if raised else "",
            is_own=raised and is_own,
            raised=raised,
        )


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


def name_nodes(lines: Sequence[LogLine], known: Mapping[str, int] = {}) -> list[LogLine]:
    """With the node of each pod, and of each rank and host that other lines place. Pure.

    An operator's master is the first node, and worker 0 the second; Slurm numbers nodes in the
    order of its list. ``known`` are nodes by their hosts' names.
    """
    placed = []
    for line in lines:
        if line.node is None and (found := _POD.search(line.pod)):
            line = replace(line, node=int(found["index"]) + (found["role"] == "worker"))
        placed.append(line)
    hosts = dict(known)
    ranks: dict[int, int] = {}
    nproc = 0
    for line in placed:
        if line.node is not None:
            hosts |= {m[1]: line.node for form in _HOST_OF_NODE if (m := form.search(line.text))}
            ranks |= {} if line.rank is None else {line.rank: line.node}
        if found := _NODELIST.search(line.text):
            hosts |= {name: node for node, name in enumerate(_expand(*found.groups("")))}
        nproc = int(found[1]) if (found := _NPROC.search(line.text)) else nproc
    named = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, hosts)) or '(?!)'})(?![\w-])")
    for at, line in enumerate(placed):
        told = {hosts[name] for name in named.findall(f"{line.file} {line.text}")}
        if line.node is None and line.rank is not None and (line.rank in ranks or nproc):
            told = {ranks.get(line.rank, line.rank // max(nproc, 1))}
        if line.node is None and len(told) == 1:
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
