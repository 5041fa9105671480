"""What all records of the launcher are: values, built by name."""

import dataclasses
import importlib
import pkgutil
from types import ModuleType


def records_of(room: ModuleType) -> list[type]:
    """The dataclasses that a room's modules define."""
    names = [m.name for m in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    held = [kind for name in names for kind in vars(importlib.import_module(name)).values()]
    return [
        kind
        for kind in dict.fromkeys(one for one in held if isinstance(one, type))
        if dataclasses.is_dataclass(kind) and kind.__module__ in names
    ]


def changeable(room: ModuleType) -> set[str]:
    """The records that can be changed once they are made."""
    found = records_of(room)
    assert found
    return {k.__name__ for k in found if not k.__dataclass_params__.frozen}


def by_place(room: ModuleType) -> set[str]:
    """The records with fields that can be given by place, so that none may be put between them."""
    return {
        kind.__name__
        for kind in records_of(room)
        if not all(field.kw_only for field in dataclasses.fields(kind))
    }
