"""A strategy's own tensors in checkpoints: equal ones, and rows of which each rank has one."""

import pytest

from tests.fabric_train.checkpointing.test_memory import Remembering, imported, load, save
from tests.fabric_train.forked import run_forked


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_each_rank_gets_its_row_back_and_another_world_gets_them_whole(tmp_path, kind):
    calls = run_forked(save, 2, tmp_path, kind)
    assert calls == [["before", "after"]] * 2

    same = run_forked(load, 2, tmp_path, Remembering(), kind)
    assert [result["mean"] for result in same] == [[0.0, 1.0, 2.0]] * 2
    for rank, result in enumerate(same):
        assert result["rows"] == {"error": [[float(rank)] * 3] * 2, "count": rank + 10}
        assert result["said"] == []

    for world_size in (1, 3):
        for result in run_forked(load, world_size, tmp_path, Remembering(), kind):
            assert result["rows"] == {"error": None, "count": None}
            assert result["shapes"] == {"mean": [3], "error": [2, 2, 3], "count": [2]}
            assert result["mean"] == [0.0, 1.0, 2.0]
