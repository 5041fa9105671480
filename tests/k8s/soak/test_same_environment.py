"""The same job gives every worker the same environment, wherever it runs."""

from __future__ import annotations

import pytest

from tests.k8s.claims.test_same_environment import run_by_launcher

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("job", ["elastic engine", "static"])
def test_every_worker_is_told_its_place_among_workers_and_not_among_pods(job, run_by_launcher):
    for rank, env in enumerate(run_by_launcher(job, "local")):
        assert env["RANK"] == env["ROLE_RANK"] == str(rank)
        assert env["WORLD_SIZE"] == "4"
        assert (env["LOCAL_RANK"], env["GROUP_RANK"]) == (str(rank % 2), str(rank // 2))
        assert env["LAUNCHER_NODE_INDEX"] == str(rank // 2)
        assert env["GREETING"] == "hello"
        assert not [name for name in env if name.startswith("PET_")]
