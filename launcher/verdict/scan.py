"""Finds the lines of a log that may say why a run failed, within a bounded time and memory. Such
lines are called telling."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import BinaryIO

from launcher.contract import protocol
from launcher.verdict.log_line import LogLine
from launcher.verdict.places import find_hosts, form_of, split_prefix

HEAD_BYTES, TAIL_BYTES = 1 << 20, 4 << 20
"""Read from a file that is longer than both: failures are at its end, settings at its start."""
MOST_CHARACTERS = 2000
"""Kept of a line."""
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m|\r$", re.MULTILINE)
MOST_LINES = 2000
"""Kept of one file: half from its start, half from its end."""

_TELLING = re.compile(
    rb"^name:|traceback|error|exception|no module|low on|not responding|fail|fatal|kill|abort"
    rb"|denied|refuse|unable|cannot|could not|not found|no such|not available|illegal|time.?out"
    rb"|timed out|limit|core dumped|unreach|no route|warn|xid|ecc |nvlink|nan\b|\binf\b|oom"
    rb"|no space|quota|too many|mismatch|signal|preempt|evict|cancelled|unschedulable|backoff"
    rb"|insufficient|taint|nccl|net/|proxy|heartbeat|hang|stuck|stall|slow|straggl|usage:|differ"
    rb"|skew|interrupt|version|reset|closed|shutdown|unauthorized|lost|not ?ready|down\b|require"
    rb"|not supported|unavailable|waiting|exit|clock|shm|bus |corrupt|truncated|has no|has \d"
    rb"|held by|in use|must |does not|doesn't|can't|not in|unknown|undefined|segfault"
    rb"|segmentation|panic|lockup|power|dead|free|fork|assert|interface|bootstrap|expected"
    rb"|manifest|plug|exceed|valid|unrecog|blocked|\bpd\b|not enough|forbid|violat|access fault"
    rb"|multi-attach|out.?of|mount|pull|remap|launch|nodelist|nproc|pending|num_local_procs"
    rb"|(?:node|group).rank|ntasks|data for node|attempt has|^ *host +:|^node:|world info"
    rb"|terminat|broken|disconnect|pressure|no devices|reboot|disrupt|is full|read-only|n't |fallen"
    rb"|requeue"
)
"""In a line in lower case; outside a traceback, a line without any of these is dropped."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|(?<![A-Za-z\d])(?<![A-Za-z]-)\d[\d.:TZ,-]*")
"""Numbers, but not those within names, such as a host's."""
NEAR_LINES = 30
"""An exception less than this many lines after a line with a time has that time."""
_OF_LOADER = " in DataLoader worker process"
_TRACEBACK = "Traceback (most recent call last):"
_SIDE = re.compile(
    r"Exception (?:in thread|ignored (?:in|on|while))\b|Task exception was never retr"
)
"""Stands before the traceback of an exception that does not end the process."""
_OF_GROUP = re.compile(r"(?:  )+(?:\||\+(?= Exception Group ))(?: |$)")
"""Stands before each line of an ``ExceptionGroup``'s traceback, and of those inside it."""
_CHAINED = re.compile(r"(?:The above|During handling of the above) exception")
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_UNREADABLE = re.compile(rb'  File "[^"]+", line \d+\s*$')
"""A script that is no Python: its exception follows, and no heading stands before this."""
LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python3|/bin/\w+$|^<|launcher(?:_node)?/agent|agent\.pyz"
    r"|^__main__\.py$"
)
"""Files that are not the user's own; the last one is in the agent's archive."""
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::|$)")
_POD_NAMED = re.compile(
    r"^Name: +(\S+)|\bpod/(\S+)|^([a-z0-9][a-z0-9-]*-\d+(?:-[a-z0-9]{5})?) +\d+/\d+ "
    r"|pods? \"([a-z0-9-]+-\d+)\""
)
_POD_OF_ROLE = re.compile(r"(?<![\w.-])[a-z0-9][a-z0-9-]*-(?:master|worker)-\d+(?![\w-])")
"""A pod as its operator names it, anywhere in a line."""
_TIMES = (
    re.compile(r"(\d{4})-(\d\d)-(\d\d)[T_ ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?"),
    re.compile(r"\b[IWEFC]()(\d\d?)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?"),
)


SETTING = "settings"
"""Stands for a file in lines about what the plan sets for the workers."""


def read_both(file: BinaryIO, most_bytes: int) -> tuple[bytes, bytes, int]:
    """A text's start, its end (empty if the start is all), and the number of bytes between.

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
        while chunk := file.read(1 << 16):
            size += len(chunk)
            head, tail = (head + chunk, b"") if len(head) < HEAD_BYTES else (head, tail + chunk)
            tail = tail[-TAIL_BYTES:] if len(tail) > 2 * TAIL_BYTES else tail
    passed_over = size - len(head) - len(tail)
    return (head, tail, passed_over) if passed_over else (head + tail, b"", 0)


def strip_colours(text: bytes) -> bytes:
    """The text without a terminal's colours and the carriage return of each line."""
    return _COLOUR.sub(b"", text) if b"\x1b" in text or b"\r\n" in text else text


def find_in_both(head: bytes, tail: bytes, place: LogLine) -> list[LogLine]:
    """The telling lines of a text's start and end: the first and last that say something new.

    ``place`` says who wrote the lines that do not say so.
    """
    head, tail = _of_last_start(head, tail)
    first, last = head.split(b"\n"), tail.split(b"\n")[1:]
    hosts = find_hosts((*first[:MOST_LINES], *(last or first)[-MOST_LINES:]))
    forms = frozenset(map(form_of, hosts))
    # A host without a telling line still counts when nodes are numbered by hosts' names.
    kept = [replace(place, host=host) for host in sorted(hosts)]
    kept += find_telling(first, place, forms)
    known = {(line.raised, line.text) for line in kept}
    in_tail = find_telling(last, place, forms)
    kept += [replace(line, number=0) for line in in_tail if (line.raised, line.text) not in known]
    half = MOST_LINES // 2
    return kept if len(kept) <= MOST_LINES else kept[:half] + kept[-half:]


def _of_last_start(head: bytes, tail: bytes) -> tuple[bytes, bytes]:
    """A log's start and end without lines of earlier starts of the job; line numbers stay."""
    again = protocol.STARTS_AGAIN.encode()
    if again in tail:
        return b"", tail[tail.rindex(again) :]
    earlier, again, newest = head.rpartition(again)
    return b"\n" * earlier.count(b"\n") + again + newest, tail


def find_telling(
    lines: Iterable[bytes], place: LogLine, forms: frozenset[str] = frozenset()
) -> Iterator[LogLine]:
    """The telling lines of a text; of lines that differ only in numbers, the first one."""
    traces: dict[LogLine, tuple[str, bool, int]] = {}
    seen: set[tuple[object, ...]] = set()
    times: dict[LogLine, tuple[int, float]] = {}
    side: dict[LogLine, bool] = {}
    described = place.pod
    for number, raw in enumerate(lines, 1):
        is_telling = _TELLING.search(raw.lower()) is not None
        is_unreadable = _UNREADABLE.search(raw) is not None
        if not (is_telling or traces or is_unreadable) or b"frame #" in raw[:60]:
            continue  # The frames of C++ name every function that was called.
        text, named = split_prefix(raw.decode(errors="backslashreplace"), forms)
        text = _OF_GROUP.sub("", text, count=1)
        stamp = named.pop("at", "")
        match = _POD_NAMED.search(text)
        role = None if match or described else _POD_OF_ROLE.search(text)
        pod = next(filter(None, match.groups())) if match else role[0] if role else described
        described = pod if match and match[1] else described
        who = replace(place, **{"pod": pod, **named})
        own_frame, is_own, indent = traces.get(who, ("", False, 0))
        inside = len(text) - len(text.lstrip())
        if _SIDE.match(text) or (who in side and _CHAINED.match(text)):
            side[who] = True
        if _TRACEBACK in text:
            traces[who] = ("", False, inside)
            continue
        if is_unreadable:
            indent = traces.setdefault(who, ("", False, inside - 2))[2]
        if who in traces and inside > indent:
            if frame := _FRAME.match(text):
                is_own = not LIBRARY.search(frame["file"])
                own_at = place_of(frame["file"], int(frame["line"]))
                traces[who] = (own_at if is_own else own_frame, is_own, indent)
            continue
        raised = who in traces and _RAISED.match(text[indent:]) is not None
        is_side = raised and side.pop(who, False)
        if raised:
            del traces[who]
            side |= {who: False} if is_side else {}  # until another one follows from it
        elif line_time := read_time(stamp or text):
            times[who] = (number, line_time)
        key = (who, raised, is_side, _NUMBERS.sub("", text))
        # After the exception of a DataLoader's worker its own traceback follows.
        if key in seen or not (raised or is_telling) or _OF_LOADER in text:
            continue
        seen.add(key)
        timed, last_time = times.get(who, (0, 0.0))
        yield replace(
            who,
            number=number,
            text=text[indent if raised else 0 : MOST_CHARACTERS],
            at=place.at or (last_time if number - timed < (NEAR_LINES if raised else 1) else 0.0),
            frame=own_frame if raised else "",
            is_own=raised and is_own,
            raised=raised,
            is_side=is_side,
        )


def place_of(file: str, line: int) -> str:
    """``train.py:88``, as people name a line of their own code."""
    return f"{os.path.basename(file)}:{line}"


def read_time(text: str) -> float:
    """A line's time in seconds since the epoch, taken as UTC; 0 if the line has none."""
    for form in _TIMES:
        if match := form.search(text[:120]):
            y, *rest, part = match.groups()
            with contextlib.suppress(ValueError):
                month, *others = rest
                form_of = "{}-{:0>2}-{}T{}:{}:{}+00:00".format(y or 1970, month, *others)
                at = datetime.datetime.fromisoformat(form_of).timestamp()
                return at + float(f"0.{part or 0}")
    return 0.0
