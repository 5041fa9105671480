"""Objects that rendered ones refer to, and the resources that their pods request. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.job.quantity import parse_quantity

Object = Mapping[str, Any]

PULL_SECRET = "image pull secret"
_BY_NAME = {
    "secretRef": ("Secret", "name"),
    "secret": ("Secret", "secretName"),
    "configMapRef": ("ConfigMap", "name"),
    "configMap": ("ConfigMap", "name"),
    "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
}
_BY_KEY = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}
_BY_VALUE = {"serviceAccountName": "ServiceAccount", "priorityClassName": "PriorityClass"}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An object that must exist and have ``keys``; ``use`` says what it is needed for."""

    kind: str
    name: str
    keys: tuple[str, ...] = ()
    use: str = ""


def parse_references(objects: Sequence[Object]) -> tuple[Reference, ...]:
    """Each referenced object once; those among ``objects`` are left out."""
    own = {(item["kind"], item["metadata"]["name"]) for item in objects}
    keys: dict[tuple[str, str, str], dict[str, None]] = {}
    for found in (found for item in objects for found in _walk(item)):
        if (found.kind, found.name) not in own:
            place = (found.kind, found.name, found.use)
            keys.setdefault(place, {}).update(dict.fromkeys(found.keys))
    return tuple(
        Reference(kind=kind, name=name, use=use, keys=tuple(names))
        for (kind, name, use), names in keys.items()
    )


def _walk(value: Any) -> Iterator[Reference]:
    if isinstance(value, list):
        for item in value:
            yield from _walk(item)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _of_field(key, inner)
            yield from _walk(inner)


def _of_field(key: str, value: Any) -> Iterator[Reference]:
    if key in _BY_VALUE:
        yield Reference(kind=_BY_VALUE[key], name=value)
    elif key == "imagePullSecrets":
        for item in value:
            yield Reference(kind="Secret", name=item["name"], use=PULL_SECRET)
    elif isinstance(value, dict) and not value.get("optional"):
        if key in _BY_KEY:
            yield Reference(kind=_BY_KEY[key], name=value["name"], keys=(value["key"],))
        elif key in _BY_NAME and _BY_NAME[key][1] in value:
            kind, name = _BY_NAME[key]
            yield Reference(kind=kind, name=value[name])


def parse_template(value: Any) -> Object | None:
    """The first pod template in an object, at whatever depth its kind has it."""
    if isinstance(value, list):
        return next((found for item in value if (found := parse_template(item))), None)
    if not isinstance(value, dict):
        return None
    template = value.get("template")
    if isinstance(template, dict) and "containers" in template.get("spec", {}):
        return template
    return next((found for item in value.values() if (found := parse_template(item))), None)


def sum_resources(template: Object, which: str) -> dict[str, float]:
    """``requests`` or ``limits`` of all containers together, in whole units and bytes."""
    total: dict[str, float] = {}
    for container in template["spec"]["containers"]:
        resources = container.get("resources") or {}
        asked = resources.get(which) or (resources.get("limits") if which == "requests" else {})
        for name, quantity in (asked or {}).items():
            total[name] = total.get(name, 0.0) + parse_amount(quantity)
    return total


def parse_amount(quantity: str | int) -> float:
    """A Kubernetes quantity as a number: ``500m`` is 0.5, ``1Gi`` 2**30."""
    return parse_quantity(str(quantity))
