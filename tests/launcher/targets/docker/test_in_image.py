"""The step of a build in the image: what pip's output is told as."""

from __future__ import annotations

from launcher.targets.docker.build import _hint


def test_a_registry_that_wants_a_login_is_told_with_the_command():
    said = "no basic auth credentials"
    assert _hint(said, "a.org:5000") == "docker login a.org:5000, then the same command"
