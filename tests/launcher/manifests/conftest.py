"""``launcher play`` in containers of this machine's engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launcher.played import Played, plays


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Played]]:
    with plays(tmp_path) as start:
        yield start
