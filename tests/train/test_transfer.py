"""Digits 5 to 9 for a network that has learned 0 to 4: frozen, then unfrozen, through faults."""

import json
from pathlib import Path
from typing import Any

import pytest

from fabric_train.checkpointing.snapshot import read_tensors
from fabric_train.errors import InputError
from fabric_train.worker_env import LEDGER_DIR, WorkerEnv
from tests.fabric_train.forked import run_forked
from tests.train.strategy_rows import LIMIT_S, Ending, work
from train.config import TrainConfig, parse_config
from train.loop import train
from train.workloads import transfer

OPTIONS = (
    *("--workload=transfer", "--accelerator=cpu", "--global_batch_size=24", "--virtual_shards=6"),
    *("--unfreeze_at_step=5", "--max_steps=10", "--checkpoint_every_steps=2", "--warmup_steps=2"),
)


def run(folder: Path, world: int, *options: str, kill_in: int | None = None) -> Ending:
    arguments = [*OPTIONS, *options, f"--checkpoint_dir={folder}"]
    told = run_forked(work, world, arguments, False, kill_in, group=False, limit_s=LIMIT_S)
    for step in told[0].losses:
        told[0].losses[step] = sum(each.losses[step] for each in told)
    result: Ending = told[0]
    return result


def test_what_stays_frozen_is_not_saved_and_other_weights_in_its_place_are_refused(
    tmp_path, monkeypatch
):
    config = TrainConfig(
        workload="transfer",
        global_batch_size=32,
        unfreeze_at_step=5,
        max_steps=8,
        checkpoint_dir=tmp_path,
        checkpoint_every_steps=4,
        keep_checkpoints=9,
    )
    env = WorkerEnv(run_dir=tmp_path / "run")
    metrics = train(config, env)
    assert (metrics["steps"], metrics["resumed_from_step"]) == (8, 0)
    (ledger,) = (tmp_path / "run" / LEDGER_DIR).iterdir()
    events = [json.loads(line) for line in ledger.read_text().splitlines()]
    first = [event["step"] for event in events if event["event"] == "first-step"]
    assert first == [1, 6], "goodput counts what follows a load until then as no progress"
    saved = {int(path.name[5:15]): set(read_tensors(path)) for path in tmp_path.glob("step-*")}
    assert sorted(saved) == [4, 5, 8]
    for step in (4, 5):
        assert not any("backbone" in name for name in saved[step])
    assert any(name.startswith("optimizer.state.backbone") for name in saved[8])

    def pretrain(config: TrainConfig) -> dict[str, Any]:
        return {
            name: weight
            for name, weight in transfer.build_model(config).state_dict().items()
            if name.startswith("backbone")
        }

    monkeypatch.setattr(transfer, "pretrain", pretrain)
    assert train(config, env)["weights_sha256"] == metrics["weights_sha256"]
    (tmp_path / "pretrained.pt").unlink()
    with pytest.raises(InputError, match="pretrained is"):
        train(config, env)


def test_a_workload_without_pretrained_weights_has_nothing_to_unfreeze():
    with pytest.raises(InputError, match="workload=digits has no pretrained weights"):
        parse_config(["--unfreeze_at_step=5"])
