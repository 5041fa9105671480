"""Reads the hosts from an inventory file, a hostfile of other launchers, or names. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from launcher.contract.errors import InputError
from launcher.targets.hosts.settings import LEASE_DIR, Host
from launcher.yamlfile.problem import FileError, KeyPath
from launcher.yamlfile.source import YamlSource, parse_yaml, read_text

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

MAX_HOSTS = 4096
FORMS = "accepted: hosts.yaml, a hostfile with `host slots=N` lines, or names: gpu1,gpu[2-5]"
EXAMPLE = "hosts: [gpu1, gpu2]"

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:-]*[A-Za-z0-9_])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*")
_INTERFACE = re.compile(r"[^\s/:,=^]{1,15}")
_RANGE = re.compile(r"\[([^\]]*)\]")
_WORDS = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*")


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Hosts in the order of their nodes.

    ``ssh_config`` replaces the user's configuration of the ssh client. ``order_by`` is the label
    by which hosts are grouped. ``accept_new`` accepts the keys of unknown hosts, but never a
    changed key.
    """

    hosts: tuple[Host, ...]
    ssh_config: str | None = None
    accept_new: bool = False
    order_by: str | None = None


HOST_KEYS = (*(f.name for f in fields(Host) if f.name != "name"), "host")
Fields = Mapping[str, Any]
"""Values for the fields of ``Host``, checked."""
TOP_KEYS = ("hosts", "defaults", "ssh_config", "order_by")


def read_inventory(
    given: str, include: str = "", exclude: str = "", *, accept_new: bool = False
) -> Inventory:
    """The hosts of ``--hosts``: a file if one exists, else names and ranges.

    Raises ``InputError`` with file and line.
    """
    path = Path(given)
    if path.is_file():
        inventory = parse_inventory(read_text(path), given)
        if inventory.ssh_config is not None:
            own = path.absolute().parent / Path(inventory.ssh_config).expanduser()
            inventory = replace(inventory, ssh_config=str(own))
    elif path.suffix in (".yaml", ".yml") or "/" in given:
        raise InputError(f"--hosts {given}: no such file", FORMS)
    else:
        inventory = Inventory(hosts=parse_host_list(given))
    hosts = filter_hosts(inventory.hosts, include, exclude)
    return replace(inventory, hosts=hosts, accept_new=accept_new)


def read_inventory_of(
    job: JobSpec, include: str = "", exclude: str = "", *, accept_new: bool = False
) -> Inventory:
    """The machines that a job file names. Raises ``InputError`` where it names none."""
    if job.hosts.inventory is None:
        raise InputError(
            "no hosts are named", "--hosts hosts.yaml, or --hosts gpu1,gpu2 (docs/hosts.md)"
        )
    return read_inventory(job.hosts.inventory, include, exclude, accept_new=accept_new)


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
    words = filter(None, (word.strip() for word in _split_words(text, where)))
    found = [_named_host(name, where) for word in words for name in expand(word, where)]
    return _check_hosts(found, where)


def _split_words(text: str, where: str) -> list[str]:
    words = _WORDS.findall(text)
    if sum(map(len, words)) + text.count(",") < len(text):
        _refuse(where, f"{text}: a bracket that is not closed", "write ranges as gpu[1-4]")
    return words


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
    found: list[Host] = []
    for number, raw in enumerate(text.splitlines(), 1):
        where = f"{file}:{number}"
        words = raw.partition("#")[0].split()
        if words:
            slots = [_slots(word, where) for word in words[1:]]
            hosts = (_named_host(name, where) for name in expand(words[0], where))
            found += [replace(host, slots=slots[-1] if slots else None) for host in hosts]
            _check_hosts(found, where)
    return _check_hosts(found, f"{file}:1")


def _slots(word: str, where: str) -> int:
    key, _, value = word.partition("=")
    if key not in ("slots", "max_slots", "max-slots") or not _is_number(value) or int(value) < 1:
        _refuse(where, f"{word!r} is not understood", "write lines such as: gpu1 slots=8")
    return int(value)


# -- hosts.yaml -----------------------------------------------------------------------------------


def parse_hosts_yaml(text: str, file: str) -> Inventory:
    """Reads ``hosts:``, a list of names and mappings, with ``defaults:`` for all of them."""
    source = parse_yaml(text, file, fix=EXAMPLE, least=EXAMPLE)
    data = source.data
    for key in data:
        _check_key(source, (key,), TOP_KEYS)
    defaults = _read_fields(source, ("defaults",), data.get("defaults") or {})
    items = data.get("hosts")
    if not isinstance(items, list) or not items:
        _refuse_at(source, ("hosts",), "no list of hosts", EXAMPLE)
    found = [host for i in range(len(items)) for host in _read_hosts(source, i, items[i], defaults)]
    hosts = _check_hosts(found, source.nearest(("hosts",)).where)
    order_by = _read_text(source, ("order_by",), data.get("order_by"))
    return Inventory(
        hosts=hosts if order_by is None else order_hosts(hosts, order_by),
        ssh_config=_read_text(source, ("ssh_config",), data.get("ssh_config")),
        order_by=order_by,
    )


def order_hosts(hosts: Iterable[Host], label: str) -> tuple[Host, ...]:
    """Groups hosts by the value of a label, in the order of each group's first host."""
    groups: dict[str, list[Host]] = {}
    for host in hosts:
        groups.setdefault(dict(host.labels).get(label, ""), []).append(host)
    return tuple(host for group in groups.values() for host in group)


def _read_hosts(source: YamlSource, index: int, item: object, defaults: Fields) -> list[Host]:
    path: KeyPath = ("hosts", index)
    where = source.nearest(path).where
    rest = {"host": item} if isinstance(item, str) else item
    if not isinstance(rest, dict) or not isinstance(name := rest.get("host"), str):
        _refuse(where, "a host without a name", "- host: gpu1")
    given = _read_fields(source, path, {key: rest[key] for key in rest if key != "host"})
    hosts = [_named_host(expanded, where) for expanded in expand(name, where)]
    named = {"user": hosts[0].user} if hosts[0].user else {}
    labels = dict(defaults.get("labels", ())) | dict(given.get("labels", ()))
    merged = {**defaults, **named, **given, "labels": tuple(labels.items())}
    return [replace(host, **merged) for host in hosts]


def _read_fields(source: YamlSource, path: KeyPath, data: object) -> Fields:
    if not isinstance(data, dict):
        _refuse_at(source, path, f"found {data!r}; accepted: a mapping", "port: 22")
    for key in data:
        _check_key(source, (*path, key), HOST_KEYS)
    given = {key: value for key, value in data.items() if value is not None}
    return {key: _read_field(source, (*path, key), value) for key, value in given.items()}


def _read_field(source: YamlSource, path: KeyPath, value: object) -> Any:
    key = path[-1]
    if key in ("port", "slots"):
        limit = 65535 if key == "port" else 4096
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= limit:
            return value
        accepted, fix = f"1 to {limit}", f"{key}: 22"
    elif key == "gpus":
        items = value if isinstance(value, list) else [value]
        if items and all(isinstance(item, int | str) and str(item) for item in items):
            return tuple(map(str, items))
        accepted, fix = "a list of ids", "gpus: [0, 1]"
    elif key == "labels":
        if isinstance(value, dict) and all(isinstance(v, str | int) for v in value.values()):
            return tuple((str(name), str(v)) for name, v in value.items())
        accepted, fix = "a mapping", "labels: {rack: a}"
    else:
        text = _read_text(source, path, value)
        if key == "interface" and not _INTERFACE.fullmatch(text or ""):
            _refuse_at(source, path, f"{value!r} is no interface name", "interface: eth0")
        if key == "lease_dir" and not (text or "").startswith("/"):
            # Of the machine, not of a user: others must find the same folder.
            _refuse_at(source, path, f"{value} is no absolute path", f"lease_dir: {LEASE_DIR}")
        return text
    return _refuse_at(source, path, f"found {value!r}; accepted: {accepted}", fix)


def _read_text(source: YamlSource, path: KeyPath, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value or "\n" in value:
        _refuse_at(source, path, f"found {value!r}; accepted: text", f"{path[-1]}: ...")
    return value


# -- filters --------------------------------------------------------------------------------------


def filter_hosts(hosts: tuple[Host, ...], include: str, exclude: str) -> tuple[Host, ...]:
    """Keeps ``include`` without ``exclude``, each like ``gpu1;gpu2:0,2``: hosts, or their GPUs."""
    known = [host.name for host in hosts]
    wanted = _parse_filter(include, "--include", known)
    unwanted = _parse_filter(exclude, "--exclude", known)
    found = []
    for host in hosts:
        if (wanted and host.name not in wanted) or unwanted.get(host.name) == ():
            continue
        if ids := wanted.get(host.name):
            host = replace(host, gpus=ids, slots=len(ids))
        if ids := unwanted.get(host.name):
            host = _without_gpus(host, ids)
        found.append(host)
    if not found:
        _refuse("--include/--exclude", "no host is left", "leave one of them out")
    return tuple(found)


def _without_gpus(host: Host, ids: tuple[str, ...]) -> Host:
    if host.gpus is None and host.slots is None:
        fix = f"name them: a line of hosts.yaml with gpus: [...] for {host.name}"
        _refuse("--exclude", f"which GPUs {host.name} has is not in the inventory", fix)
    own = host.gpus or tuple(map(str, range(host.slots or 0)))
    left = tuple(id for id in own if id not in ids)
    if not left:
        _refuse("--exclude", f"nothing of {host.name} is left", f"--exclude {host.name}")
    return replace(host, gpus=left, slots=len(left))


def _parse_filter(text: str, where: str, known: list[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (p.strip() for p in re.split(r"[;\s]", text))):
        # A colon may belong to an IPv6 address, so a known host must stand before the last one.
        name, colon, ids = part.rpartition(":")
        words, ids = ([name], ids) if colon and name in known else (_split_words(part, where), "")
        for host in (host for word in words if word for host in expand(word, where)):
            if host not in known:
                listed = ", ".join(known[:8])
                _refuse(where, f"{host} is not in the inventory", f"one of: {listed}")
            found[host] = tuple(id for id in ids.split(",") if id)
    return found


# -- refusals -------------------------------------------------------------------------------------


def _refuse(where: str, what: str, fix: str) -> NoReturn:
    raise InputError(f"{where}: {what}", fix)


def _refuse_at(source: YamlSource, path: KeyPath, what: str, fix: str) -> NoReturn:
    raise FileError([source.problem(path, what, fix)])


def _check_key(source: YamlSource, path: KeyPath, known: Collection[str]) -> None:
    if path[-1] not in known:
        _refuse_at(source, path, "no such key", f"one of: {', '.join(known)}")
