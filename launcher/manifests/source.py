"""Kubernetes manifests as they were written: each value of an object has its file and line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from launcher.job.values import parse_quantity
from launcher.yamlfile.problem import KeyPath
from launcher.yamlfile.source import YamlSource, parse_documents

EXTENDED_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")
"""Resource names by which device plugins hand out accelerators."""
SHM = "/dev/shm"


@dataclass(frozen=True, kw_only=True)
class Value:
    """One place of a manifest, written or not; ``data`` is None where it is not written.

    A key of a value that is absent or of another type is an absent value, so callers need not check
    each step on the way.
    """

    source: YamlSource
    path: KeyPath
    data: Any

    def __getitem__(self, key: str) -> Value:
        value = self.data.get(key) if isinstance(self.data, dict) else None
        return Value(source=self.source, path=(*self.path, key), data=value)

    def __iter__(self) -> Iterator[Value]:
        """A list's items; nothing where it is no list."""
        for i, item in enumerate(self.data if isinstance(self.data, list) else ()):
            yield Value(source=self.source, path=(*self.path, i), data=item)

    def __bool__(self) -> bool:
        """Whether something other than null is written here."""
        return self.data is not None

    def items(self) -> tuple[tuple[str, Value], ...]:
        """A mapping's keys and values, in the order written; nothing where it is no mapping."""
        return tuple((k, self[k]) for k in self.data) if isinstance(self.data, dict) else ()

    @property
    def where(self) -> str:
        """``file:line`` of the key, or of what would hold it."""
        return self.source.nearest(self.path).where

    @property
    def text(self) -> str:
        """A scalar as text, as an API server would have it; empty where there is none."""
        if isinstance(self.data, bool):
            return str(self.data).lower()
        return str(self.data) if isinstance(self.data, str | int | float) else ""

    @property
    def written(self) -> str:
        """What stands in the file, quotes included; empty where nothing does."""
        entry = self.source.entries.get(self.path)
        return "" if entry is None else entry.written

    @property
    def quantity(self) -> float | None:
        """A Kubernetes quantity as a number (bytes, cores); None where there is none."""
        try:
            return parse_quantity(self.text)
        except ValueError:
            return None

    @property
    def number(self) -> int | None:
        """A whole number; None for anything else."""
        whole = isinstance(self.data, int) and not isinstance(self.data, bool)
        return self.data if whole else None


def parse_manifest(text: str, file: str) -> tuple[Value, ...]:
    """The objects of a manifest, those inside of a ``List`` too. Raises ``FileError``."""
    values: list[Value] = []
    for source in parse_documents(text, file):
        top = Value(source=source, path=(), data=source.data)
        values += list(top["items"]) if top["kind"].text == "List" else [top]
    return tuple(values)


def object_name(item: Value) -> str:
    """``metadata.name``; empty where it is not written."""
    return item["metadata"]["name"].text


def count_gpus(container: Value) -> int | None:
    """The accelerators that a container gets; None where the manifest names none."""
    for section in ("limits", "requests"):
        for gpu in EXTENDED_GPUS:
            amount = container["resources"][section][gpu].text
            if amount.isdigit():
                return int(amount)
    return None


def shm_volume(pod: Value, container: Value) -> Value | None:
    """The volume of a pod that a container has at /dev/shm; None where it has none there."""
    names = [m["name"].text for m in container["volumeMounts"] if m["mountPath"].text == SHM]
    return next((volume for volume in pod["volumes"] if volume["name"].text in names), None)


def render_path(path: KeyPath) -> str:
    """A path as people write it: ``spec.containers[0].env``."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(steps).lstrip(".")
