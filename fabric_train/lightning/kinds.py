"""Lightning's classes by name.

Scripts import them from ``lightning.pytorch`` or ``pytorch_lightning``: one code, two packages.
"""

from __future__ import annotations


def is_a(thing: object, *names: str) -> bool:
    """Whether one of these classes is the thing's, or one that its class is made of."""
    return any(kind.__name__ in names for kind in type(thing).__mro__)
