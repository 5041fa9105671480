"""A target's own settings: one typed record, which plans carry and only the target's room reads."""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from launcher.contract.records import changed_fields, parse_record
from launcher.plan.target_facts import MachineFacts, TargetFacts

if TYPE_CHECKING:
    from launcher.plan.launch_plan import LaunchPlan

KIND = "kind_of_settings"
"""Names the class in JSON: ``module.Class``."""


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """Base of each target's record. Only the room that defines one reads its fields.

    ``hold`` is the run id of the hold whose nodes the run uses.
    """

    hold: str = ""

    @classmethod
    def of(cls, plan: LaunchPlan | TargetFacts) -> Self:
        """The record of a plan, or of facts, for this target."""
        assert isinstance(plan.own, cls), f"planned for {plan.target}"
        return plan.own

    @property
    def own_python(self) -> str:
        """The Python of this machine that runs the workers; empty if they run another."""
        return ""

    @property
    def keeps_nodes(self) -> str:
        """What to use instead if a run cannot change its number of nodes; empty if it can."""
        return ""

    @property
    def machines(self) -> tuple[MachineFacts, ...]:
        """The machine of each node, if the target knows them before the start."""
        return ()

    @staticmethod
    def parse_data(data: Any) -> TargetSettings:
        """Reads what ``dump_settings`` gave. Raises ``ValueError`` for anything else.

        The class is found by its name: plans are read before any target's room is imported.
        """
        if not isinstance(data, dict):
            raise ValueError(f"{data!r} are no settings of a target")
        fields = dict(data)
        name = str(fields.pop(KIND, ""))
        module, _, kind_name = name.rpartition(".")
        kind = None
        # A file may name only a class of a loaded module or of this package.
        if module in sys.modules or module.startswith(f"{__package__.partition('.')[0]}."):
            with contextlib.suppress(ImportError):
                kind = getattr(importlib.import_module(module), kind_name, None)
        if not (isinstance(kind, type) and issubclass(kind, TargetSettings)):
            raise ValueError(f"{name!r} names no settings of a target")
        return parse_record(kind, fields)


def dump_settings(settings: TargetSettings) -> dict[str, object]:
    """As plain data with the name of its class."""
    kind = type(settings)
    return {KIND: f"{kind.__module__}.{kind.__qualname__}", **changed_fields(settings)}
