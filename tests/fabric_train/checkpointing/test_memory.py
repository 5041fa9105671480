"""A strategy's own tensors in checkpoints: equal ones, and rows of which each rank has one."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from fabric_train.checkpointing.memory import share_row, take_row
from fabric_train.checkpointing.saver import Saver
from fabric_train.checkpointing.snapshot import read_tensors
from fabric_train.strategies.strategy import Strategy
from tests.fabric_train.forked import ForkedError, run_forked


@dataclass
class Remembering(Strategy):
    """Remembers what it is told to; ``calls`` are those that were made, in order."""

    name: ClassVar[str] = "remembering"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kept: dict[str, Tensor] = {}
        self.loaded: Mapping[str, Tensor] | None = None
        self.calls: list[str] = []

    def before_save(self) -> None:
        self.calls.append("before")

    def after_save(self) -> None:
        self.calls.append("after")

    def memory(self) -> dict[str, Tensor]:
        return self.kept

    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        self.loaded = saved


class Other(Remembering):
    name: ClassVar[str] = "other"


def keep(strategy: Remembering, rank: int, *, rows: bool = True) -> Remembering:
    strategy.kept = {"mean": torch.arange(3.0)}
    if rows:
        strategy.kept["error"] = share_row(torch.full((2, 3), float(rank)))
        strategy.kept["count"] = share_row(torch.tensor(rank + 10))
    return strategy


def build(kind: str = "ddp") -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 2)
    if kind == "fsdp":
        fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def save(folder: Path, kind: str = "ddp", *, rows: bool = True) -> list[str]:
    """One checkpoint; what the strategy was called with."""
    saver = Saver(folder, say=lambda text: None)
    model, optimizer = build(kind)
    strategy = keep(Remembering(), dist.get_rank() if dist.is_initialized() else 0, rows=rows)
    saver.resume(model, optimizer, strategy)
    result = saver.save(1, model, optimizer, block=True, strategy=strategy)
    assert result is None or result.path, result
    assert strategy.loaded is None
    return strategy.calls


def load(folder: Path, strategy: Remembering | None = None, kind: str = "ddp") -> dict[str, Any]:
    """What a start gets: values of the memory, its own row of each, and what it said."""
    said: list[str] = []
    saver = Saver(folder, say=said.append)
    assert saver.resume(*build(kind), strategy)
    loaded = (strategy and strategy.loaded) or {}
    rows = {name: take_row(loaded[name]) for name in ("error", "count") if name in loaded}
    return {
        "names": sorted(loaded),
        "mean": loaded["mean"].tolist() if "mean" in loaded else None,
        "rows": {name: None if row is None else row.tolist() for name, row in rows.items()},
        "shapes": {name: list(tensor.shape) for name, tensor in loaded.items()},
        "said": said,
    }


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory) -> None:
    """What a first save imports, so that forked ranks need not."""
    save(tmp_path_factory.mktemp("first"))


def test_what_is_equal_is_written_once_and_by_rank_0_alone(tmp_path):
    run_forked(save, 2, tmp_path)
    files = {path.name: path for path in (tmp_path / "latest").iterdir()}
    # The model and what is equal lie in rank 0's file, rows in both.
    assert {"__0_0.distcp", "__1_0.distcp"} <= set(files)
    tensors = read_tensors(tmp_path / "latest")
    assert tensors["memory.error"].tolist() == [[[0.0] * 3] * 2, [[1.0] * 3] * 2]
    assert {"model.weight", "model.bias", "memory.mean"} < set(tensors)


def enter_own(folder: Path) -> int:
    """Has this rank work in a folder that no other rank sees."""
    rank = dist.get_rank()
    (folder / str(rank)).mkdir()
    os.chdir(folder / str(rank))
    return rank


def test_without_rows_the_other_nodes_need_not_see_the_folder(tmp_path):
    def save_apart() -> None:
        enter_own(tmp_path)
        save(Path("checkpoints"), rows=False)

    run_forked(save_apart, 2)
    assert (tmp_path / "0/checkpoints/latest/__0_0.distcp").exists()
    assert not (tmp_path / "1/checkpoints").exists()


@pytest.mark.parametrize("known_at_start", [True, False])
def test_rows_in_a_folder_that_nodes_do_not_share_are_refused_with_the_fix(
    tmp_path, known_at_start
):
    def save_apart() -> list[str]:
        rank = enter_own(tmp_path)
        said: list[str] = []
        saver = Saver(Path("checkpoints"), say=said.append)
        model, optimizer = build()
        strategy = Remembering()
        if known_at_start:
            keep(strategy, rank)
        saver.resume(model, optimizer, strategy)
        saver.save(1, model, optimizer, block=True, strategy=keep(strategy, rank))
        return said

    message = "rank 1 does not see checkpoints"
    if known_at_start:
        with pytest.raises(ForkedError, match=message) as caught:
            run_forked(save_apart, 2)
        assert "set checkpoint_dir to a folder that all nodes share" in str(caught.value)
    else:
        said = run_forked(save_apart, 2)
        assert message in said[0][-1]
    assert not (tmp_path / "0/checkpoints/latest").exists()


def test_another_strategys_memory_is_left_out_with_one_line(tmp_path):
    run_forked(save, 2, tmp_path)
    for strategy, name in ((Other(), "other"), (None, "this training")):
        results = run_forked(load, 2, tmp_path, strategy)
        assert [len(rank["said"]) for rank in results] == [1, 0]
        assert f"state of strategy remembering, which {name} cannot use" in results[0]["said"][0]
        assert [rank["names"] for rank in results] == [[], []]


def test_a_checkpoint_without_memory_loads_and_the_strategy_is_told(tmp_path):
    saver = Saver(tmp_path)
    model, optimizer = build()
    saver.resume(model, optimizer)
    saver.save(1, model, optimizer, block=True)
    strategy = Remembering()
    assert load(tmp_path, strategy)["said"] == []
    assert strategy.loaded == {}


def test_a_process_alone_gets_its_row_back(tmp_path):
    save(tmp_path)
    results = load(tmp_path, Remembering())
    assert results["rows"] == {"error": [[0.0] * 3] * 2, "count": 10}
    # As many rows as another world has ranks, but not that world's own.
    alone = run_forked(load, 2, tmp_path, Remembering())
    assert alone[1]["rows"] == {"error": None, "count": None}


def test_a_step_that_is_saved_already_is_not_saved_again_by_any_rank(tmp_path):
    def save_twice() -> tuple[list[str], list[str]]:
        saver = Saver(tmp_path)
        model, optimizer = build()
        strategy = keep(Remembering(), dist.get_rank())
        saver.resume(model, optimizer, strategy)
        for _ in range(2):
            saver.save(1, model, optimizer, block=True, strategy=strategy)
        return strategy.calls, sorted(path.name for path in tmp_path.glob("step-*"))

    calls, steps = run_forked(save_twice, 2)[1]
    assert calls == ["before", "after"] * 2
    assert steps == ["step-0000000001-g1-a0"]
