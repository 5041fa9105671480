"""Which node and rank wrote a line: by the line's prefix, and by what other lines say. Pure.

A prefix names a rank, a node or a host. If one line names two of these, they belong together in all
other lines too.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.verdict.log_line import LogLine

LEAST_BEGUN = 3
"""Names of one form count as hosts if they begin this many lines."""
MOST_HOSTS = 2000


# -- what stands before a line ---------------------------------------------------------------------

STAMP = re.compile(
    r"^(?P<at>\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)) (?:std(?:out|err) [FP] )?"
    # Not a line of a journal, in which a host and a program follow.
    r"(?![\w.-]+ [\w./-]+(?:\[\d+\])?: )",
    re.MULTILINE,
)
"""The time that ``kubectl logs --timestamps`` and ``docker logs -t`` put before each line."""
_PREFIXES = (
    STAMP,
    re.compile(r"\[(?P<node>\d+)/(?P<rank>\d+)\] ?"),  # the launcher's
    re.compile(r"\[?rank(?P<rank>\d+)\]?: ?"),  # torch's
    re.compile(r"\[[a-z]\w*?(?P<local_rank>\d+)\]: ?"),  # torchrun's, by the name of a role
    re.compile(r" ?(?P<task>\d+): "),  # srun --label
    re.compile(r"\[(?:\S+@)?\d+,(?P<rank>\d+)\]<std(?:out|err)>: ?"),  # mpirun --tag-output
    re.compile(r"\[pod/(?P<pod>[^/]+)/\S+\] "),  # kubectl logs --prefix
)
_HOST_FIRST = re.compile(
    r"(?!python|epoch|step|iter|layer)(?P<host>[A-Za-z][\w.-]*\d[\w.-]*)(?:: | +\| )"
    r"|(?P<pod>[a-z][a-z0-9-]*-\d+(?:-[a-z0-9]{5})?) [a-z][a-z0-9-]* "
)
"""A host as pdsh, clush and Compose put it before a line, or stern's pod and container."""
_HOST_INSIDE = re.compile(
    r"(?:\[[\d :-]+\] )?([\w.-]+):\d+:\d+ (?:\[\d+\] )?.*\bNCCL "
    r"|\[([\w.-]+):\d+\] "
    r"|(?:[A-Z][a-z]{2} +\d+ [\d:]+|\d{4}-\d\d-\d\dT\S+) (?![A-Z]{4})([\w.-]+)"
    r" [\w./-]+(?:\[\d+\])?: "
)
"""A host as NCCL, Open MPI and a journal name it in their lines."""
_RANK_INSIDE = re.compile(
    r"[\[(<](?:PG [^\]]*)?[Rr](?:ank|ANK)[ :=]?(\d+)(?:/\d+)?[\])>]"
    r"|process rank (\d+) with PID"
)
"""A rank as torch, loggers and mpirun name it; used if no prefix names one."""
_DIGITS = re.compile(r"\d+")
_NUMBERED = ("node", "rank", "local_rank", "task")


_DOMAIN = re.compile(r"\.[A-Za-z][\w.-]*$")


def _short(host: str) -> str:
    """The host without its domain, which only some programs write."""
    return _DOMAIN.sub("", host)


def form_of(host: str) -> str:
    """A host's name with ``#`` for each number: ``gpu#``."""
    return _DIGITS.sub("#", host)


def find_hosts(lines: Iterable[bytes]) -> frozenset[str]:
    """The names of hosts that begin lines, such as ``gpu3``."""
    matches = (_HOST_FIRST.match(STAMP.sub("", line.decode(errors="replace"))) for line in lines)
    names = [match[1] or match[2] for match in matches if match]
    counts = Counter(map(form_of, names))
    return frozenset(name for name in names if counts[form_of(name)] >= LEAST_BEGUN)


def split_prefix(text: str, forms: frozenset[str] = frozenset()) -> tuple[str, dict[str, Any]]:
    """A line without its prefixes, and what they name, by the fields of ``LogLine``.

    The innermost prefix wins; ``at`` is a text. ``forms`` are the forms of hosts that begin lines.
    """
    named: dict[str, Any] = {}
    while True:
        match = next(filter(None, (prefix.match(text) for prefix in _PREFIXES)), None)
        if match is None and forms and (match := _HOST_FIRST.match(text)):
            match = match if form_of(match[1] or match[2]) in forms else None
        if match is None:
            break
        groups = {name: value for name, value in match.groupdict().items() if value}
        text, named = text[match.end() :], {**named, **groups}
    if "rank" not in named and (in_text := _RANK_INSIDE.search(text[:300])):
        named["rank"] = in_text[1] or in_text[2]
    if "host" not in named and (host := _HOST_INSIDE.match(text)):
        named["host"] = next(filter(None, host.groups()))
    if "host" in named:
        named["host"] = _short(named["host"])
    return text, {name: int(v) if name in _NUMBERED else v for name, v in named.items()}


_NODE_IN = re.compile(r"(?<![a-z])node[-_]?(\d+)(?![a-z\d])")


def node_in(file: str) -> int | None:
    """The node that a file's name gives, such as 1 for ``slurm/node-1.log``."""
    match = _NODE_IN.search(file)
    return int(match[1]) if match else None


# -- what lines tell together ----------------------------------------------------------------------

_POD = re.compile(r"(?:-(?P<role>master|worker))?-(?P<index>\d+)(?:-[a-z0-9]{5})?$")
_HOST_OF_NODE = (
    re.compile(r"^Node: +([\w.-]+)"),  # kubectl describe pod
    re.compile(
        r"^[a-z0-9-]+-\d+(?:-[a-z0-9]{5})? +\d+/\d+ .* (?:[\d.]+|<none>) +([a-z0-9][\w.-]+)"
    ),  # get pods
    re.compile(r"^ *host +: ([\w.-]+)"),  # torchrun's report
    re.compile(r"Successfully assigned \S+ to ([\w.-]+)"),
)
_NPROC = re.compile(
    r"(?:\bnproc[_-]per[_-]node|ntasks[_-]per[_-]node|\blocal_?world_?size)[ =:]+(\d+)"
    r"|\blocalRanks (\d+)\b|Num procs: (\d+)$|local_procs=(\d+)",
    re.IGNORECASE,
)
_A_TASK_FOR_EACH = re.compile(r"ntasks[_-]per[_-]node[ =:]+(?:\d\d|[2-9])\b", re.IGNORECASE)
_NODELIST = re.compile(r"(?<![A-Za-z])(?:NODELIST|NodeList)=([\w.,-]+)(?:\[([\d,-]+)\]([\w.-]*))?")
_TASKS = re.compile(r"(?:on host |error: )([\w.-]+)(?:, \d+ tasks|: tasks?):? (\d+)(,|-)?")
"""srun's: a host with its tasks, of which the first one is enough."""
_IN_ORDER = (re.compile(r"Data for node: ([\w.-]+)"), re.compile(r"'([\w.-]+)': \["))
"""mpirun's map of a job, and DeepSpeed's: hosts in the order of nodes."""
_NODE_RANK = re.compile(r"(?:node|group)[_-]rank[=: ]+(\d+)", re.IGNORECASE)
_BOTH = re.compile(r"\brank (\d+) n[Rr]anks \d+ .*\b(?:localRank|cudaDev) (\d+)\b")
_REPORTED = re.compile(r"host +: (\S+)\n[^\n]*\brank +: (\d+) \(local_rank: (\d+)\)")


def name_nodes(
    lines: Sequence[LogLine],
    known: Mapping[str, int] = {},
    *,
    reports: Iterable[str] = (),
    by_file: bool = False,
) -> list[LogLine]:
    """The lines, with nodes and ranks filled in from what other lines say.

    An operator's master is the first node, and worker 0 the second; Slurm numbers nodes in the
    order of its list. ``known`` are nodes by their hosts' names, and ``reports`` hold torchrun's;
    ``by_file``: each file is from one node.
    """
    nodes = _Nodes(lines, known, reports, by_file)
    placed = [nodes.name_rank(line) for line in lines]
    for _ in range(2):  # What one line teaches places another, which teaches more.
        for line in placed:
            nodes.learn(line)
    nodes.guess(placed)
    return nodes.place(placed)


class _Nodes:
    """The node of each rank (a number), and of each host or file (a name).

    A key for which lines name two nodes has none.
    """

    def __init__(
        self,
        lines: Sequence[LogLine],
        known: Mapping[str, int],
        reports: Iterable[str],
        by_file: bool,
    ) -> None:
        self._known: dict[int | str, set[int]] = defaultdict(set)
        self._by_file = by_file
        self._given = frozenset(map(_short, known))
        self._nproc = 0
        self._ranks: dict[int, set[int]] = defaultdict(set)  # by local rank
        pairs = [pair for text in reports for pair in _REPORTED.findall(text)]
        order: list[str] = []
        firsts: dict[str, int] = {}  # tasks of srun, by host
        is_each = False
        for line in lines:
            if match := _NPROC.search(line.text):
                self._nproc = int(next(filter(None, match.groups())))
            if listed := _NODELIST.search(line.text):
                order = list(_expand(*listed.groups("")))
            for form in _IN_ORDER if "node" in line.text or "WORLD" in line.text else ():
                order += [host for host in form.findall(line.text) if host not in order]
            if line.host and (pair := _BOTH.search(line.text)):
                pairs.append((line.host, *pair.groups()))
            is_each = is_each or _A_TASK_FOR_EACH.search(line.text) is not None
            if tasks := _TASKS.search(line.text):
                firsts[_short(tasks[1])] = int(tasks[2])
                is_each = is_each or bool(tasks[3])
        self._add_pairs(pairs)
        for node, host in enumerate(order):
            self._known[_short(host)].add(node)
        for host, first in firsts.items() if not is_each and not order else ():
            self._known[host].add(first)
        for host, node in known.items():
            self._known[_short(host)] = {node}
        local_ranks = [line.local_rank or 0 for line in lines if by_file]
        if not self._nproc and any(line.node for line in lines):
            self._nproc = 1 + max(local_ranks, default=-1)
        self._label = self._judge_label(lines, len(order), is_each)
        is_shifted = not any(x.rank == 0 and x.pod.endswith("-worker-0") for x in lines)
        self._shift = {"worker": int(is_shifted)}

    def _add_pairs(self, pairs: Iterable[tuple[str, str, str]]) -> None:
        """Places hosts by a rank and its local rank, and derives nproc from these if it can."""
        firsts: dict[str, int] = {}
        least = 1
        for host, rank, local in pairs:
            firsts[_short(host)] = int(rank) - int(local)
            least = max(least, 1 + int(local))
            self._ranks[int(local)].add(int(rank))
        if whole := math.gcd(*firsts.values()):
            fit = [n for n in range(least, whole + 1) if whole % n == 0]
            is_one = len(fit) == 1
            self._nproc = self._nproc or (fit[0] if is_one else whole * (0 in firsts.values()))
        for host, first in firsts.items():
            if self._nproc or not first:
                self._known[host].add(first // (self._nproc or 1))

    def _judge_label(self, lines: Sequence[LogLine], hosts: int, is_each: bool) -> str:
        """What ``srun --label`` numbers, as a field of ``LogLine``: ``node`` or ``rank``."""
        labelled = [line for line in lines if line.task is not None]
        most = 1 + max((line.task or 0 for line in labelled), default=0)
        pairs = {(line.task, line.rank) for line in labelled if line.rank is not None}
        is_same = len(pairs) > 1 and all(task == rank for task, rank in pairs)
        has_agents = any("torch/distributed/" in line.text for line in labelled)
        if is_each or most > hosts > 0:
            self._nproc = self._nproc if self._nproc > 1 else most // max(hosts, 1)
            return "rank"
        return "rank" if is_same and not has_agents and hosts != most else "node"

    def name_rank(self, line: LogLine) -> LogLine:
        """The line with the node and rank that srun's label, the local rank and the pod give."""
        if line.task is not None and getattr(line, self._label) is None:
            line = replace(line, **{self._label: line.task})  # type: ignore[arg-type]
        if line.rank is None and len(ranks := self._ranks.get(line.local_rank or 0, set())) == 1:
            line = line if line.local_rank is None else replace(line, rank=min(ranks))
        if line.node is None and (pod := _POD.search(line.pod)):
            line = replace(line, node=int(pod["index"]) + self._shift.get(pod["role"], 0))
        return line

    def _find(self, key: int | str | None) -> int | None:
        nodes = self._known.get(key, ()) if key not in (None, "") else ()
        if not nodes and isinstance(key, int) and self._nproc:
            return key // self._nproc
        return min(nodes) if len(nodes) == 1 else None

    def _node_of(self, line: LogLine) -> int | None:
        if line.node is not None:
            return line.node
        nodes = (self._find(key) for key in (line.rank, line.host, f"/{line.file}"))
        return next((node for node in nodes if node is not None), None)

    def learn(self, line: LogLine) -> None:
        """Learns that a line's rank and hosts are on the line's node."""
        if named := _NODE_RANK.search(line.text):
            self._known[line.host or f"/{line.file}"].add(int(named[1]))
        if (node := self._node_of(line)) is None:
            return
        hosts = [_short(m[1]) for form in _HOST_OF_NODE if (m := form.search(line.text))]
        for key in (line.rank, line.host, f"/{line.file}" if self._by_file else None, *hosts):
            if key not in (None, ""):
                self._known[key].add(node)

    def guess(self, lines: Sequence[LogLine]) -> None:
        """Guesses nodes of hosts that no line places, by the numbers in their names."""
        alike: dict[str, set[str]] = defaultdict(set)
        for line in lines:
            if line.host:
                alike[form_of(line.host)].add(line.host)
        for hosts in alike.values():
            if len(hosts) < 2 or any(host in self._known for host in hosts):
                continue
            for column in zip(*map(_DIGITS.findall, hosts), strict=True):
                numbers = list(map(int, column))
                # A folder with a file for each host, and no gap in the numbers, has all hosts.
                are_all = self._by_file and max(numbers) - min(numbers) < len(hosts)
                if len(set(numbers)) == len(hosts) and (are_all or min(numbers) in (0, 1)):
                    for host, number in zip(hosts, numbers, strict=True):
                        self._known[host].add(number - min(numbers))
                    break

    def place(self, lines: Sequence[LogLine]) -> list[LogLine]:
        """The lines with their nodes; a line without one is about the node whose host it names."""
        hosts = {
            name: node
            for name in list(self._known)
            if isinstance(name, str) and name[0] != "/" and (node := self._find(name)) is not None
        }
        any_host = f"({'|'.join(map(re.escape, hosts)) or '(?!)'})"
        named = re.compile(rf"(?<![\w.-]){any_host}(?:_\d+)*(?:-[a-z0-9]{{5}})?(?![\w-])")
        in_file = re.compile(rf"(?<![A-Za-z\d]){any_host}(?![A-Za-z\d])")
        placed = []
        for line in lines:
            node, names = self._node_of(line), [line.host]
            if node is None:
                names = named.findall(line.text) + in_file.findall(line.file)
                named_nodes = {hosts[name] for name in names}
                node = min(named_nodes) if len(named_nodes) == 1 else None
            rank = line.rank
            if rank is None and line.local_rank is not None:
                first = 0 if not node else node * self._nproc or None
                rank = None if first is None else first + line.local_rank
            is_placed = line.node is None and node is not None
            inferred = is_placed and self._given.isdisjoint(names)
            placed.append(replace(line, node=node, rank=rank, is_inferred=inferred))
        return placed


def _expand(begin: str, listed: str, end: str) -> Iterator[str]:
    """The hosts of ``cn[130-132,140]``, or of ``a,b``, as Slurm writes them."""
    if not listed:
        yield from begin.split(",")
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", listed):
        for number in range(int(first), min(int(last or first), int(first) + MOST_HOSTS) + 1):
            yield f"{begin}{number:0{len(first)}}{end}"
