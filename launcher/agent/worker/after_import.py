"""Calls back once a script has imported a module. Standard library only."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    """Calls ``then`` with the module now, or as soon as it is imported; does not import it."""
    if (module := sys.modules.get(name)) is not None:
        then(module)
    elif waiting := [f for f in sys.meta_path if isinstance(f, _AfterImport) and f.name == name]:
        waiting[0].then.append(then)
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back once the module is imported, and leaves ``sys.meta_path`` again."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, [then]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for then in self.then:
                    then(module)

            loader.exec_module = exec_module
        return spec
