"""A target's own settings: one typed record of its room, which plans carry and never look into."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from launcher.plan.target_facts import MachineFacts

if TYPE_CHECKING:
    from launcher.plan.launch_plan import LaunchPlan

KIND = "kind_of_settings"
"""Names the class in JSON: ``module.Class``."""


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """Base of each target's record. Only the room that defines one reads its fields."""

    @classmethod
    def of(cls, plan: LaunchPlan) -> Self:
        """The record of a plan that was made for this target."""
        assert isinstance(plan.own, cls), f"planned for {plan.target}"
        return plan.own

    @property
    def machines(self) -> tuple[MachineFacts, ...]:
        """The machine of each node, where the target knows them before it starts."""
        return ()


def dump_settings(settings: TargetSettings) -> dict[str, object]:
    """As plain data with the name of its class."""
    kind = type(settings)
    return {KIND: f"{kind.__module__}.{kind.__qualname__}", **vars(settings)}


def parse_settings(data: object) -> TargetSettings | None:
    """Reads what ``dump_settings`` gave. Raises ``ValueError`` for anything else.

    The class is found by its name: plans are read where no target's room is imported yet.
    """
    from pydantic import TypeAdapter

    if data is None:
        return None
    if not isinstance(data, dict):
        raise ValueError(f"{data!r} are no settings of a target")
    fields = dict(data)
    kind = _find_kind(str(fields.pop(KIND, "")))
    return TypeAdapter(kind).validate_python(fields)


def _find_kind(name: str) -> type[TargetSettings]:
    module, _, kind_name = name.rpartition(".")
    kind = None
    # What a file names is imported only if it is a part of this package.
    if module in sys.modules or module.startswith(f"{__package__.partition('.')[0]}."):
        try:
            kind = getattr(importlib.import_module(module), kind_name, None)
        except ImportError as error:
            raise ValueError(f"{name}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, TargetSettings)):
        raise ValueError(f"{name!r} names no settings of a target")
    return kind
