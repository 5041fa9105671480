"""What a pod's environment and volumes come to outside of a cluster. Pure.

ConfigMaps and Secrets are those of the same files. What only a cluster has is refused by name.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.manifests.source import SHM, Together, Value

KINDS = {"configMap": "ConfigMap", "secret": "Secret"}
"""Kinds of objects whose contents pods see, by the fields that name them."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where values come from: the pod, objects of the same files, the caller's environment."""

    together: Together
    pod_name: str
    namespace: str
    labels: Mapping[str, str]
    environ: Mapping[str, str] = field(repr=False)

    def contents(self, kind: str, name: str) -> dict[str, bytes]:
        """What a ConfigMap or Secret holds; empty where it is not in these files."""
        item = self.together.find(kind, name, self.namespace)
        if item is None:
            return {}
        plain, coded = ("stringData", "data") if kind == "Secret" else ("data", "binaryData")
        contents = {key: value.text.encode() for key, value in item[plain].items()}
        for key, value in item[coded].items():
            try:
                contents[key] = base64.b64decode(value.text, validate=False)
            except ValueError as error:
                raise InputError(f"{value.where}: not base64", "base64 < FILE") from error
        return contents

    def texts(self, kind: str, name: str) -> dict[str, str]:
        """The contents that may become variables: those that are text."""
        texts = {}
        for key, content in self.contents(kind, name).items():
            with contextlib.suppress(UnicodeDecodeError):
                texts[key] = content.decode()
        return texts

    def check_there(self, reference: Value, kind: str, name: str) -> None:
        """Raises ``InputError`` for an object that a pod in a cluster would wait for."""
        is_there = self.together.find(kind, name, self.namespace) is not None
        if not is_there and reference["optional"].data is not True:
            raise InputError(
                f"{reference.where}: {kind} {name} of namespace {self.namespace} is not in these "
                "files",
                f"name the file that holds the {kind} too: "
                f"{typed.command('play', 'JOB.yaml', 'FILE.yaml')}",
            )


# -- variables ----------------------------------------------------------------------------------


def expand(text: str, known: Mapping[str, str]) -> str:
    """Puts known values in place of ``$(NAME)``, and ``$`` for ``$$``, as the kubelet does."""
    reference = r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)"
    return re.sub(reference, lambda m: "$" if m[0] == "$$" else known.get(m[1], m[0]), text)


def read_env(container: Value, around: Surroundings) -> dict[str, str]:
    """A container's own variables. Raises ``InputError`` for a value that is not available here."""
    env: dict[str, str] = {}
    for source in container["envFrom"]:
        for field_name, kind in KINDS.items():
            if reference := source[f"{field_name}Ref"]:
                name, prefix = reference["name"].text, source["prefix"].text
                around.check_there(reference, kind, name)
                env |= {prefix + key: text for key, text in around.texts(kind, name).items()}
    for variable in container["env"]:
        name = variable["name"].text
        if not variable["valueFrom"]:
            env[name] = expand(variable["value"].text, env)
        elif (value := _value_from(variable, around)) is not None:
            env[name] = value
    return env


def _value_from(variable: Value, around: Surroundings) -> str | None:
    source, name = variable["valueFrom"], variable["name"].text
    if path := source["fieldRef"]["fieldPath"].text:
        return _field(path, around)
    if source["resourceFieldRef"]:
        what = f"{variable.where}: {name}: resourceFieldRef is not played"
        raise InputError(what, f"value: in a copy of the file, in place of what {name} comes from")
    for field_name, kind in KINDS.items():
        if reference := source[f"{field_name}KeyRef"]:
            if name in around.environ and kind == "Secret":
                return around.environ[name]
            wanted = reference["name"].text
            found = around.texts(kind, wanted).get(reference["key"].text)
            if found is None and reference["optional"].data is not True:
                raise InputError(
                    f"{variable.where}: {name} comes from {kind} {wanted}, which is not in these "
                    "files",
                    f"export {name}=... here, or add the {kind} to the files",
                )
            return found
    return None


def _field(path: str, around: Surroundings) -> str:
    known = {
        "metadata.name": around.pod_name,
        "metadata.namespace": around.namespace,
        "metadata.uid": around.pod_name,
        "spec.nodeName": "localhost",
        "spec.serviceAccountName": "default",
        # The pod's address is not known before it starts, and its name resolves to it.
        "status.podIP": around.pod_name,
        "status.podIPs": around.pod_name,
        "status.hostIP": "localhost",
    }
    label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
    return around.labels.get(label[1], "") if label else known.get(path, "")


# -- volumes ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class VolumeFile:
    """One file of a volume; ``path`` is relative to the volume, ``mode`` its permissions."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class PlayedVolume:
    """A folder that is made for a pod, or for all pods that name the same claim.

    ``claim`` is empty for a folder of the pod's own.
    """

    name: str
    claim: str = ""
    files: tuple[VolumeFile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlayedMount:
    """A volume, or ``sub_path`` in it, at ``target`` in the container."""

    volume: PlayedVolume
    target: str
    sub_path: str = ""
    read_only: bool = False


def read_mounts(pod: Value, container: Value, around: Surroundings) -> Iterator[PlayedMount]:
    """A container's mounts except /dev/shm. Raises ``InputError`` for an unknown volume."""
    volumes = {volume["name"].text: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        name, target = mount["name"].text, mount["mountPath"].text
        if name not in volumes:
            raise InputError(f"{mount.where}: no volume {name!r}", "add it to volumes of the pod")
        if target != SHM:
            volume = _volume(volumes[name], around)
            is_read_only = mount["readOnly"].data is True or bool(volume.files)
            yield PlayedMount(
                volume=volume, target=target, sub_path=mount["subPath"].text, read_only=is_read_only
            )


def _volume(volume: Value, around: Surroundings) -> PlayedVolume:
    name = volume["name"].text
    for key, kind in KINDS.items():
        if source := volume[key]:
            return PlayedVolume(name=name, files=tuple(_files(source, kind, around)))
    claim = volume["persistentVolumeClaim"]["claimName"].text
    if claim or volume["emptyDir"]:
        return PlayedVolume(name=name, claim=claim)
    found = next((key for key, _ in volume.items() if key != "name"), "nothing")
    raise InputError(
        f"{volume.where}: volume {name} is of kind {found}, which play does not have",
        "emptyDir, configMap, secret or persistentVolumeClaim",
    )


def _files(source: Value, kind: str, around: Surroundings) -> Iterator[VolumeFile]:
    """A volume's files from an object of that kind."""
    item = source["secretName" if kind == "Secret" else "name"].text
    around.check_there(source, kind, item)
    contents = around.contents(kind, item)
    paths = {entry["key"].text: entry["path"].text for entry in source["items"]}
    for key, path in (paths or {key: key for key in contents}).items():
        if key in contents:
            mode = source["defaultMode"].number or 0o644
            yield VolumeFile(path=path, content=contents[key], mode=mode)
        elif source["optional"].data is not True:
            raise InputError(
                f"{source['items'].where}: {kind} {item} has no key {key}",
                f"add it to the {kind}, or take it out of items",
            )
