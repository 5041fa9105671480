"""An engine that holds what a test puts there."""

from collections.abc import Iterator
from threading import Thread

import pytest

from tests.launcher.targets.docker.fake_engine import FakeEngine


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """The engine to which DOCKER_HOST leads."""
    with FakeEngine() as engine:
        Thread(target=engine.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        yield engine
        engine.shutdown()
