"""Reads the hosts from an inventory file, a hostfile of other launchers, or names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from launcher.contract.errors import InputError
from launcher.targets.hosts.settings import Host
from launcher.yamlfile.problem import FileError, KeyPath
from launcher.yamlfile.source import YamlSource, parse_yaml, read_text

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

MAX_HOSTS = 4096
FORMS = "accepted: hosts.yaml, a hostfile with `host slots=N` lines, or names: gpu1,gpu[2-5]"

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
TOP_KEYS = ("hosts", "defaults", "ssh_config", "order_by")


def read_inventory(given: str, include: str = "", exclude: str = "") -> Inventory:
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
    return replace(inventory, hosts=filter_hosts(inventory.hosts, include, exclude))


def read_inventory_of(job: JobSpec) -> Inventory:
    """The machines that a job file names. Raises ``InputError`` where it names none."""
    if job.hosts.inventory is None:
        raise InputError(
            "no hosts are named", "--hosts hosts.yaml, or --hosts gpu1,gpu2 (docs/hosts.md)"
        )
    return read_inventory(job.hosts.inventory)


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
    words = [word.strip() for word in _split_words(text, where)]
    if not any(words):
        _refuse(where, "no host is named", FORMS)
    found = tuple(
        _named_host(name, where) for word in words if word for name in expand(word, where)
    )
    return _without_repeats(found, where)


def _split_words(text: str, where: str) -> list[str]:
    words = [match[0] for match in _WORDS.finditer(text)]
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


def _without_repeats(hosts: tuple[Host, ...], where: str) -> tuple[Host, ...]:
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            _refuse(where, f"{host.name} is named twice", "name each host once")
        seen.add(host.name)
    return hosts


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
            _without_repeats(tuple(found), where)
    if not found:
        _refuse(f"{file}:1", "no host is named", FORMS)
    return tuple(found)


def _slots(word: str, where: str) -> int:
    key, _, value = word.partition("=")
    if key not in ("slots", "max_slots", "max-slots") or not _is_number(value) or int(value) < 1:
        _refuse(where, f"{word!r} is not understood", "write lines such as: gpu1 slots=8")
    return int(value)


# -- hosts.yaml -----------------------------------------------------------------------------------


def parse_hosts_yaml(text: str, file: str) -> Inventory:
    """Reads ``hosts:``, a list of names and mappings, with ``defaults:`` for all of them."""
    source = parse_yaml(text, file)
    data = source.data
    for key in data:
        if key not in TOP_KEYS:
            _refuse_key(source, (key,), TOP_KEYS)
    defaults = _fields(source, ("defaults",), data.get("defaults") or {})
    items = data.get("hosts")
    if not isinstance(items, list) or not items:
        _refuse_at(source, ("hosts",), "no list of hosts", "hosts: [gpu1, gpu2]")
    found = tuple(
        host for i, item in enumerate(items) for host in _hosts_of(source, i, item, defaults)
    )
    _without_repeats(found, source.nearest(("hosts",)).where)
    order_by = _text(source, ("order_by",), data.get("order_by"))
    ordered = found if order_by is None else order_hosts(found, order_by)
    ssh_config = _text(source, ("ssh_config",), data.get("ssh_config"))
    return Inventory(hosts=ordered, ssh_config=ssh_config, order_by=order_by)


def order_hosts(hosts: Iterable[Host], label: str) -> tuple[Host, ...]:
    """Groups hosts by the value of a label, in the order of each group's first host."""
    groups: dict[str, list[Host]] = {}
    for host in hosts:
        groups.setdefault(dict(host.labels).get(label, ""), []).append(host)
    return tuple(host for group in groups.values() for host in group)


def _hosts_of(
    source: YamlSource, index: int, item: object, defaults: Mapping[str, Any]
) -> list[Host]:
    path: KeyPath = ("hosts", index)
    where = source.nearest(path).where
    if isinstance(item, str):
        given: dict[str, Any] = {}
        name = item
    elif isinstance(item, dict) and isinstance(item.get("host"), str):
        name = item["host"]
        given = _fields(source, path, {k: v for k, v in item.items() if k != "host"})
    else:
        _refuse(where, "a host without a name", "- host: gpu1")
    labels = dict(defaults.get("labels", ())) | dict(given.get("labels", ()))
    hosts = [_named_host(expanded, where) for expanded in expand(name, where)]
    named = {"user": hosts[0].user} if hosts[0].user else {}
    merged = {**defaults, **named, **given, "labels": tuple(labels.items())}
    return [replace(host, **merged) for host in hosts]


def _fields(source: YamlSource, path: KeyPath, data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        _refuse_at(source, path, f"found {data!r}; accepted: a mapping", "port: 22")
    found: dict[str, Any] = {}
    for key, value in data.items():
        here = (*path, key)
        if key not in HOST_KEYS or key == "host":
            _refuse_key(source, here, HOST_KEYS)
        if value is not None:
            found[key] = _field(source, here, key, value)
    return found


def _field(source: YamlSource, path: KeyPath, key: str, value: object) -> object:
    if key in ("port", "slots"):
        limit = 65535 if key == "port" else 4096
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
            _refuse_at(source, path, f"found {value!r}; accepted: 1 to {limit}", f"{key}: 22")
        return value
    if key == "gpus":
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int | str) and str(i) for i in items) or not items:
            _refuse_at(source, path, f"found {value!r}; accepted: a list of ids", "gpus: [0, 1]")
        return tuple(str(item) for item in items)
    if key == "labels":
        if not isinstance(value, dict) or not all(isinstance(v, str | int) for v in value.values()):
            _refuse_at(source, path, f"found {value!r}; accepted: a mapping", "labels: {rack: a}")
        return tuple((str(name), str(v)) for name, v in value.items())
    text = _text(source, path, value)
    if key == "interface" and (text is None or not _INTERFACE.fullmatch(text)):
        _refuse_at(source, path, f"{value!r} is no interface name", "interface: eth0")
    return text


def _text(source: YamlSource, path: KeyPath, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value or "\n" in value:
        _refuse_at(source, path, f"found {value!r}; accepted: text", f"{path[-1]}: ...")
    return value


# -- filters --------------------------------------------------------------------------------------


def filter_hosts(hosts: tuple[Host, ...], include: str, exclude: str) -> tuple[Host, ...]:
    """Keeps ``include`` without ``exclude``, each like ``gpu1;gpu2:0,2``: hosts, or their GPUs."""
    known = {host.name: host for host in hosts}
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


def _parse_filter(text: str, where: str, known: Mapping[str, Host]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (p.strip() for p in re.split(r"[;\s]", text))):
        # A colon may belong to an IPv6 address, so a known host must stand before the last one.
        name, colon, ids = part.rpartition(":")
        if not colon or name not in known:
            words = [(word, "") for word in _split_words(part, where) if word]
        else:
            words = [(name, ids)]
        for word, numbers in words:
            for host in expand(word, where):
                if host not in known:
                    listed = ", ".join(list(known)[:8])
                    _refuse(where, f"{host} is not in the inventory", f"one of: {listed}")
                found[host] = tuple(id for id in numbers.split(",") if id)
    return found


# -- refusals -------------------------------------------------------------------------------------


def _refuse(where: str, what: str, fix: str) -> NoReturn:
    raise InputError(f"{where}: {what}", fix)


def _refuse_at(source: YamlSource, path: KeyPath, what: str, fix: str) -> NoReturn:
    raise FileError([source.problem(path, what, fix)])


def _refuse_key(source: YamlSource, path: KeyPath, known: Iterable[str]) -> NoReturn:
    _refuse_at(source, path, "no such key", f"one of: {', '.join(known)}")
