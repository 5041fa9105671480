"""What a pod's environment and volumes come to outside of a cluster. Pure.

ConfigMaps and Secrets are those of the same files; what only a cluster knows is said or refused.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from launcher.contract.errors import InputError
from launcher.manifests.source import Together, Value

REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a pod may ask about: itself, objects of the same files, the caller's environment."""

    together: Together
    pod_name: str
    namespace: str
    node_name: str
    labels: Mapping[str, str]
    environ: Mapping[str, str] = field(repr=False)


def expand(text: str, known: Mapping[str, str]) -> str:
    """``$(NAME)`` by its value where it is known, ``$$`` by one ``$``: the kubelet's rule."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0])

    return REFERENCE.sub(value, text)


def read_env(container: Value, around: Surroundings) -> dict[str, str]:
    """A container's own variables. Raises ``InputError`` for one whose value nobody has here."""
    env: dict[str, str] = {}
    for source in container["envFrom"]:
        prefix = source["prefix"].text
        for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
            if source[key]:
                _check_there(source[key], kind, source[key]["name"].text, around)
                texts = _texts(source[key], kind, around)
                env |= {prefix + name: value for name, value in texts.items()}
    for variable in container["env"]:
        name = variable["name"].text
        if not variable["valueFrom"]:
            env[name] = expand(variable["value"].text, env)
        elif (value := _value_from(variable, container, around)) is not None:
            env[name] = value
    return env


def _value_from(variable: Value, container: Value, around: Surroundings) -> str | None:
    source, name = variable["valueFrom"], variable["name"].text
    if path := source["fieldRef"]["fieldPath"].text:
        return _field(path, around)
    if resource := source["resourceFieldRef"]["resource"].text:
        section, _, wanted = resource.partition(".")
        return container["resources"][section][wanted].text or None
    for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        if reference := source[key]:
            if name in around.environ and kind == "Secret":
                return around.environ[name]
            found = _texts(reference, kind, around).get(reference["key"].text)
            if found is not None:
                return found
            if reference["optional"].data is True:
                return None
            raise InputError(
                f"{variable.where}: {name} comes from {kind} {reference['name'].text}, which is "
                "not in these files",
                f"export {name}=... here, or add the {kind} to the files",
            )
    return None


def _field(path: str, around: Surroundings) -> str:
    known = {
        "metadata.name": around.pod_name,
        "metadata.namespace": around.namespace,
        "metadata.uid": around.pod_name,
        "spec.nodeName": around.node_name,
        "spec.serviceAccountName": "default",
        # Its address is not known before it is started, and this name leads to it.
        "status.podIP": around.pod_name,
        "status.podIPs": around.pod_name,
        "status.hostIP": around.node_name,
    }
    label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
    return around.labels.get(label[1], "") if label else known.get(path, "")


def _texts(reference: Value, kind: str, around: Surroundings) -> dict[str, str]:
    """The contents that may become variables; what is no text never does."""
    texts = {}
    for key, content in _data(reference, kind, around).items():
        with contextlib.suppress(UnicodeDecodeError):
            texts[key] = content.decode()
    return texts


def _check_there(reference: Value, kind: str, name: str, around: Surroundings) -> None:
    """Raises ``InputError`` for what a pod would wait for: CreateContainerConfigError, or mounts
    that fail."""
    if around.together.find(kind, name) is None and reference["optional"].data is not True:
        raise InputError(
            f"{reference.where}: {kind} {name} is not in these files",
            f"name the file that holds the {kind} too: launcher play JOB.yaml FILE.yaml",
        )


def _data(reference: Value, kind: str, around: Surroundings) -> dict[str, bytes]:
    """A ConfigMap's or Secret's contents; empty where it is not in these files."""
    item = around.together.find(kind, reference["name"].text)
    if item is None:
        return {}
    plain = item["stringData"] if kind == "Secret" else item["data"]
    coded = item["data"] if kind == "Secret" else item["binaryData"]
    contents = {key: plain[key].text.encode() for key in plain.keys()}  # noqa: SIM118
    for key in coded.keys():  # noqa: SIM118
        try:
            contents[key] = base64.b64decode(coded[key].text, validate=False)
        except ValueError as error:
            raise InputError(f"{coded[key].where}: not base64", "base64 < FILE") from error
    return contents


# -- volumes ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a volume; ``path`` is relative to the volume, ``mode`` its permissions."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class PlayedVolume:
    """A folder that is made for a pod, or for all pods that name the same claim.

    ``claim`` is empty for a folder of the pod's own; ``note`` is what is not as in a cluster.
    """

    name: str
    claim: str = ""
    files: tuple[File, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class VolumeMount:
    """A volume, or ``sub_path`` in it, at ``target`` in the container."""

    volume: PlayedVolume
    target: str
    sub_path: str = ""
    read_only: bool = False


SHM = "/dev/shm"
OBJECT_VOLUMES = (("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName"))
"""Kind, the volume's key, and the key in it that names the object."""


def read_mounts(pod: Value, container: Value, around: Surroundings) -> Iterator[VolumeMount]:
    """A container's mounts but the one at /dev/shm. Raises ``InputError`` for an unknown volume."""
    volumes = {volume["name"].text: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        name, target = mount["name"].text, mount["mountPath"].text
        if name not in volumes:
            raise InputError(f"{mount.where}: no volume {name!r}", "add it to volumes of the pod")
        if target == SHM:
            continue
        volume = _volume(volumes[name], around)
        yield VolumeMount(
            volume=volume,
            target=target,
            sub_path=mount["subPath"].text,
            read_only=mount["readOnly"].data is True or bool(volume.files),
        )


def _volume(volume: Value, around: Surroundings) -> PlayedVolume:
    name = volume["name"].text
    for kind, key, named in (
        ("ConfigMap", "configMap", "name"),
        ("Secret", "secret", "secretName"),
    ):
        if volume[key]:
            return _from_object(volume[key], kind, named, name, around)
    if volume["emptyDir"]:
        return PlayedVolume(name=name)
    if claim := volume["persistentVolumeClaim"]["claimName"].text:
        return PlayedVolume(name=name, claim=claim)
    kinds = [key for key in volume.keys() if key != "name"]  # noqa: SIM118
    kind = kinds[0] if kinds else "nothing"
    return PlayedVolume(name=name, note=f"volumes {name}: {kind} is an empty folder here")


def _from_object(
    source: Value, kind: str, named: str, name: str, around: Surroundings
) -> PlayedVolume:
    item = source[named].text
    _check_there(source, kind, item, around)
    reference = {"name": item}
    data = _data(Value(source=source.source, path=source.path, data=reference), kind, around)
    paths = {key: key for key in data}
    if source["items"]:
        paths = {entry["key"].text: entry["path"].text for entry in source["items"]}
    missing = sorted(set(paths) - set(data))
    if missing and source["optional"].data is not True:
        raise InputError(
            f"{source['items'].where}: {kind} {item} has no key {missing[0]}",
            f"add it to the {kind}, or take it out of items",
        )
    mode = source["defaultMode"].number or 0o644
    files = [File(path=path, content=data[k], mode=mode) for k, path in paths.items() if k in data]
    return PlayedVolume(name=name, files=tuple(files))
