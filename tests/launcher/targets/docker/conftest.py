"""An engine that holds what a test puts there."""

import os
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
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        yield engine
        engine.shutdown()
