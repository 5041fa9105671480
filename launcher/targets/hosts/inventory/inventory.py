"""Reads the hosts from an inventory file, a hostfile of other launchers, or names such as gpu[1-4];
--include, --exclude. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.targets.hosts.settings import Host
from launcher.yamlfile.source import read_text, similar_file

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

MAX_HOSTS = 4096
FORMS = "accepted: hosts.yaml, a hostfile with `host slots=N` lines, or names: gpu1,gpu[2-5]"

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:-]*[A-Za-z0-9_])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*")
_RANGE = re.compile(r"\[([^\]]*)\]")
_COMMA = re.compile(r",(?![^\[]*\])")
"""A comma that is not within brackets."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Hosts in the order of their nodes.

    ``ssh_config`` replaces the user's configuration of the ssh client. ``accept_new`` accepts the
    keys of unknown hosts, but never a changed key.
    """

    hosts: tuple[Host, ...]
    ssh_config: str | None = None
    accept_new: bool = False


def read_inventory(
    given: str, *, include: str = "", exclude: str = "", accept_new_host_keys: bool = False
) -> Inventory:
    """The hosts of ``--hosts``: a file if one exists, else names and ranges.

    Raises ``InputError`` with file and line.
    """
    path = Path(given)
    if path.is_file():
        inventory = parse_inventory(read_text(path), given)
        if inventory.ssh_config is not None:
            config = path.absolute().parent / Path(inventory.ssh_config).expanduser()
            inventory = replace(inventory, ssh_config=str(config))
    elif path.suffix in (".yaml", ".yml") or "/" in given:
        raise InputError(f"--hosts {given}: no such file", similar_file(path))
    else:
        inventory = Inventory(hosts=parse_host_list(given))
    hosts = filter_hosts(inventory.hosts, include, exclude)
    return replace(inventory, hosts=hosts, accept_new=accept_new_host_keys)


def read_inventory_of(job: JobSpec, **filters: Any) -> Inventory:
    """The machines that a job file names. Raises ``InputError`` if it names none."""
    if job.hosts.inventory is None:
        raise InputError(
            "no hosts are named",
            f"--hosts hosts.yaml, or --hosts gpu1,gpu2 ({typed.command('docs', 'hosts')})",
        )
    return read_inventory(job.hosts.inventory, **filters)


def parse_inventory(text: str, file: str) -> Inventory:
    """Reads a hosts.yaml or a hostfile, depending on the file's name or its keys."""
    if file.endswith((".yaml", ".yml", ".json")) or re.search(
        r"^\s*(?:hosts|defaults|ssh_config|order_by)\s*:", text, re.MULTILINE
    ):
        return parse_hosts_yaml(text, file)
    return Inventory(hosts=parse_hostfile(text, file))


# -- names and ranges ---------------------------------------------------------------------------


def parse_host_list(text: str, where: str = "--hosts") -> tuple[Host, ...]:
    """Reads ``gpu1,user@10.0.0.[3-6]``: names separated by commas, ranges in brackets."""
    return _check_hosts([_named_host(name, where) for name in _names(text, where)], where)


def _names(text: str, where: str) -> list[str]:
    words = filter(None, map(str.strip, _COMMA.split(text)))
    return [name for word in words for name in expand(word, where)]


def expand(word: str, where: str = "--hosts") -> list[str]:
    """Expands ``gpu[1-3,7]`` to gpu1, gpu2, gpu3, gpu7; ``[01-10]`` keeps the zeros."""
    match = _RANGE.search(word)
    if match is None:
        return [word]
    numbers = [n for part in match[1].split(",") for n in _numbers(part.strip(), word, where)]
    rest = expand(word[match.end() :], where)
    if len(numbers) * len(rest) > MAX_HOSTS:
        _refuse(where, f"{word}: more than {MAX_HOSTS} hosts", "name fewer")
    return [f"{word[: match.start()]}{number}{tail}" for number in numbers for tail in rest]


def _numbers(part: str, word: str, where: str) -> list[str]:
    first, dash, last = part.partition("-")
    last = last if dash else first
    if not (_is_number(first) and _is_number(last)) or int(last) < int(first):
        _refuse(where, f"{word}: {part!r} is no range", "write ranges as gpu[1-4] or gpu[1,3]")
    if int(last) - int(first) >= MAX_HOSTS:
        _refuse(where, f"{word}: more than {MAX_HOSTS} hosts", "name fewer")
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _named_host(word: str, where: str) -> Host:
    user, at, name = word.rpartition("@")
    if not _NAME.fullmatch(name):
        _refuse(where, f"{word!r} is no host name or address", FORMS)
    if at and not _USER.fullmatch(user):
        _refuse(where, f"{word!r}: {user!r} is no user name", "write user@host")
    return Host(name=name, user=user if at else None)


def _check_hosts(hosts: Sequence[Host], where: str) -> tuple[Host, ...]:
    names = [host.name for host in hosts]
    if not names:
        _refuse(where, "no host is named", FORMS)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        _refuse(where, f"{twice} is named twice", "name each host once")
    return tuple(hosts)


# -- hostfile -------------------------------------------------------------------------------------


def parse_hostfile(text: str, file: str) -> tuple[Host, ...]:
    """Reads ``host slots=N`` lines as MPI, DeepSpeed and Horovod do; ``#`` begins a comment."""
    hosts: list[Host] = []
    for number, raw in enumerate(text.splitlines(), 1):
        where = f"{file}:{number}"
        words = raw.partition("#")[0].split()
        if words:
            slots = [_slots(word, where) for word in words[1:]]
            named = (_named_host(name, where) for name in expand(words[0], where))
            hosts += [replace(host, slots=slots[-1] if slots else None) for host in named]
            _check_hosts(hosts, where)
    return _check_hosts(hosts, f"{file}:1")


def _slots(word: str, where: str) -> int:
    key, _, value = word.partition("=")
    if key not in ("slots", "max_slots", "max-slots") or not _is_number(value) or int(value) < 1:
        _refuse(where, f"{word!r} is not understood", "write lines such as: gpu1 slots=8")
    return int(value)


# -- hosts.yaml -----------------------------------------------------------------------------------


def parse_hosts_yaml(text: str, file: str) -> Inventory:
    """Reads ``hosts:``, a list of names and mappings, with ``defaults:`` for all of them."""
    # Imported only here: a list of names needs no pydantic, which takes long to import.
    from launcher.targets.hosts.inventory.hosts_yaml import parse_hosts_file

    hosts_file, source = parse_hosts_file(text, file)
    hosts: list[Host] = []
    for place, entry in enumerate(hosts_file.hosts):
        where = source.nearest(("hosts", place)).where
        for name in expand(entry.host, where):
            host = _named_host(name, where)
            given = entry.model_dump(exclude_none=True, exclude={"host"})
            named = {"user": host.user} if host.user else {}
            fields = {**hosts_file.defaults.model_dump(exclude_none=True), **named, **given}
            labels = {**(hosts_file.defaults.labels or {}), **(entry.labels or {})}
            hosts.append(replace(host, **{**fields, "labels": tuple(labels.items())}))
    checked = _check_hosts(hosts, source.nearest(("hosts",)).where)
    return Inventory(
        hosts=checked if hosts_file.order_by is None else order_hosts(checked, hosts_file.order_by),
        ssh_config=hosts_file.ssh_config,
    )


def order_hosts(hosts: Iterable[Host], label: str) -> tuple[Host, ...]:
    """Groups hosts by the value of a label, in the order of each group's first host."""
    groups: dict[str, list[Host]] = {}
    for host in hosts:
        groups.setdefault(dict(host.labels).get(label, ""), []).append(host)
    return tuple(host for group in groups.values() for host in group)


# -- filters --------------------------------------------------------------------------------------


def filter_hosts(hosts: tuple[Host, ...], include: str, exclude: str) -> tuple[Host, ...]:
    """Keeps ``include`` without ``exclude``, each a list of names such as ``gpu1,gpu[3-4]``."""
    known = [host.name for host in hosts]
    wanted = _parse_filter(include, "--include", known) or known
    unwanted = _parse_filter(exclude, "--exclude", known)
    left = tuple(host for host in hosts if host.name in wanted and host.name not in unwanted)
    if not left:
        _refuse("--include/--exclude", "no host is left", "leave one of them out")
    return left


def _parse_filter(text: str, where: str, known: list[str]) -> list[str]:
    names = _names(text, where)
    for name in names:
        if name not in known:
            _refuse(where, f"{name} is not in the inventory", f"one of: {', '.join(known[:8])}")
    return names


# -- refusals -------------------------------------------------------------------------------------


def _refuse(where: str, what: str, fix: str) -> NoReturn:
    raise InputError(f"{where}: {what}", fix)
