"""The keys of hosts.yaml, and errors in them by file and line."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from launcher.contract.errors import closest
from launcher.targets.hosts.settings import LEASE_DIR
from launcher.yamlfile.problem import FileError, KeyPath
from launcher.yamlfile.source import YamlSource, parse_yaml

EXAMPLE = "hosts: [gpu1, gpu2]"
EXAMPLES = {
    "host": "- host: gpu1",
    "hosts": EXAMPLE,
    "gpus": "gpus: [0, 1]",
    "slots": "slots: 8",
    "port": "port: 22",
    "labels": "labels: {rack: a}",
    "interface": "interface: eth0",
    "lease_dir": f"lease_dir: {LEASE_DIR}",
}
Text = Annotated[str, Field(pattern=r"\A[^\x00\n]+\z")]
Labels = dict[str, Annotated[str, Field(pattern=r"\A[^\x00\n]*\z")]]
GpuId = Annotated[str, Field(pattern=r"\A[A-Za-z0-9_.:-]+\z")]
AsList = BeforeValidator(lambda given: [given] if isinstance(given, int | str) else given)
AsMapping = BeforeValidator(lambda given: {"host": given} if isinstance(given, str) else given)


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class HostKeys(_Keys):
    """What may be said of a host, and of all of them under ``defaults``."""

    user: Text | None = None
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] | None = None
    identity: Text | None = None
    slots: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    gpus: Annotated[tuple[GpuId, ...], Field(min_length=1), AsList] | None = None
    address: Text | None = None
    interface: Annotated[str, Field(pattern=r"\A[^\s/:,=^]{1,15}\z")] | None = None
    python: Text | None = None
    state_dir: Text | None = None
    # An absolute path, so that all users of the machine find the same folder.
    lease_dir: Annotated[str, Field(pattern=r"\A/[^\x00\n]*\z")] | None = None
    labels: Labels | None = None


class HostEntry(HostKeys):
    """One host, or several by a range."""

    host: Text


class HostsFile(_Keys):
    """The whole file."""

    hosts: Annotated[tuple[Annotated[HostEntry, AsMapping], ...], Field(min_length=1)]
    defaults: HostKeys = HostKeys()
    ssh_config: Text | None = None
    order_by: Text | None = None


def parse_hosts_file(text: str, file: str) -> tuple[HostsFile, YamlSource]:
    """The file's keys, and where each is. Raises ``FileError`` with all that is wrong."""
    source = parse_yaml(text, file, fix=EXAMPLE, least=EXAMPLE)
    try:
        return HostsFile.model_validate(source.data), source
    except ValidationError as error:
        errors = error.errors(include_url=False)
        below = {mistake["loc"][:n] for mistake in errors for n in range(len(mistake["loc"]))}
        # A list of hosts that are all wrong would also be called empty.
        problems = [_explain(mistake, source) for mistake in errors if mistake["loc"] not in below]
        raise FileError(problems) from None


def _explain(mistake: Any, source: YamlSource) -> Any:
    path: KeyPath = mistake["loc"]
    if mistake["type"] == "extra_forbidden":
        kinds: dict[str, type[_Keys]] = {"hosts": HostEntry, "defaults": HostKeys}
        kind = kinds[str(path[0])] if len(path) > 1 else HostsFile
        accepted = kind.model_fields
        close = closest(str(path[-1]), accepted)
        fix = f"did you mean {close}?" if close else f"one of: {', '.join(accepted)}"
        return source.problem(path, "no such key", fix)
    fix = next((EXAMPLES[key] for key in reversed(path) if key in EXAMPLES), EXAMPLE)
    if mistake["type"] == "missing":
        return source.problem(path, "missing", fix)
    words = re.sub("^[A-Z][a-z]+ should", "it should", mistake["msg"])
    return source.problem(path, f"found {mistake['input']!r}; {words}", fix)
