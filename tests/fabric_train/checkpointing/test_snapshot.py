import enum
import os
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import filesystem

from fabric_train.checkpointing.manifest import DamagedError
from fabric_train.checkpointing.snapshot import capture, read_tensors, restore, write_tensors


def build(optimizer=torch.optim.AdamW, **options) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    return model, optimizer(model.parameters(), lr=0.1, **options)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {}),
    ],
    ids=["fused AdamW", "AMSGrad", "momentum", "plain SGD"],
)
def test_a_restored_state_trains_on_as_if_nothing_had_happened(tmp_path, optimizer, options):
    first, expected = build(optimizer, **options), build(optimizer, **options)
    train(*expected, range(6))
    train(*first, range(3))
    state = capture(*first)
    write_tensors(state.tensors, tmp_path, None)

    second = build(optimizer, **options)
    restore(type(state)(tensors=read_tensors(tmp_path), values=state.values), *second)
    train(*second, range(3, 6))
    for name, weight in expected[0].state_dict().items():
        assert torch.equal(second[0].state_dict()[name], weight), name


def test_a_weight_may_get_its_first_gradient_after_a_resume(tmp_path):
    def build_two() -> tuple[nn.ModuleList, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model: nn.ModuleList, optimizer: torch.optim.Optimizer, heads: int) -> None:
        optimizer.zero_grad()
        sum(head(torch.ones(3)).sum() for head in model[:heads]).backward()
        optimizer.step()

    first, expected, second = build_two(), build_two(), build_two()
    step(*first, heads=1)
    state = capture(*first)
    write_tensors(state.tensors, tmp_path, None)
    restore(type(state)(tensors=read_tensors(tmp_path), values=state.values), *second)
    step(*second, heads=2)
    step(*expected, heads=1)
    step(*expected, heads=2)
    for name, weight in expected[0].state_dict().items():
        assert torch.equal(second[0].state_dict()[name], weight), name


def test_capturing_before_the_first_step_changes_nothing():
    model, optimizer = build()
    assert not any(name.startswith("optimizer.") for name in capture(model, optimizer).tensors)
    assert not optimizer.state


def test_an_index_that_pickles_enums_as_some_pythons_do_is_read(tmp_path, monkeypatch):
    def reduce_by_getattr(member, protocol):
        return getattr, (type(member), member.name)

    monkeypatch.setattr(enum.Enum, "__reduce_ex__", reduce_by_getattr)
    write_tensors({"w": torch.ones(3)}, tmp_path, None)
    assert b"getattr" in (tmp_path / ".metadata").read_bytes()
    assert read_tensors(tmp_path)["w"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "says"),
    [((getattr, (torch.Size, "__init__")), "does not belong there"), ((os.mkdir, ("x",)), "mkdir")],
)
def test_an_index_that_would_run_code_is_refused(tmp_path, monkeypatch, call, says):
    class Evil:
        def __reduce__(self):
            return call

    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DamagedError, match=says):
        read_tensors(tmp_path)
    assert not (tmp_path / "x").exists()


def test_a_write_beside_the_training_never_waits_for_its_stream(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("would copy on the current stream")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(filesystem, "_OverlappingCpuLoader", refuse)
    write_tensors({"w": torch.ones(3)}, tmp_path, None)
    assert torch.equal(read_tensors(tmp_path)["w"], torch.ones(3))
