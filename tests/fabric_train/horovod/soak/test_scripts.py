"""Scripts written for Horovod whose import was changed, against loops without it."""

import importlib.util
import random
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data.distributed import DistributedSampler

ROOT = Path(__file__).parents[4]
BATCH = 64


def load_example(name: str) -> object:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digits_alone(epochs: int) -> dict[str, torch.Tensor]:
    """The weights of ``horovod_digits.py`` on two processes, from a plain loop."""
    example = load_example("horovod_digits")
    torch.manual_seed(42)
    model = example.Net()
    data, _ = example.load()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.5)
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        order = list(sampler)
        for start in range(0, len(order), BATCH):
            images, labels = data[order[start : start + BATCH]]
            optimizer.zero_grad()
            F.nll_loss(model(images), labels).backward()
            optimizer.step()
    return model.state_dict()


def elastic_alone(
    epochs: int, alone_from: tuple[int, int] | None = None
) -> dict[str, torch.Tensor]:
    """The weights of ``horovod_elastic.py`` on two processes, from a plain loop.

    ``alone_from``: the epoch and its samples after which one process goes on, with half the batch
    and half the learning rate.
    """
    data, _ = load_example("horovod_digits").load()
    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.5)
    for epoch in range(epochs):
        order = list(range(len(data)))
        random.Random(epoch).shuffle(order)
        start, batch = 0, BATCH
        while start < len(order):
            if alone_from and (epoch, start) >= alone_from:
                batch = BATCH // 2
                optimizer.param_groups[0]["lr"] = 0.02
            images, labels = data[order[start : start + batch]]
            start += batch
            optimizer.zero_grad()
            F.cross_entropy(model(images.flatten(1)), labels).backward()
            optimizer.step()
    return model.state_dict()


def same_weights(saved: Path, expected: dict[str, torch.Tensor]) -> None:
    found = torch.load(saved)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5)


def test_the_example_trains_two_processes_as_one(processes, finish):
    script = str(ROOT / "examples/horovod_digits.py")
    code, out, err = finish(
        processes.fork(script, "--epochs", "2", "--save", "weights.pt", ranks=2)
    )
    assert code == 0, err
    assert "epoch 2: accuracy 0." in out
    same_weights(processes.folder / "weights.pt", digits_alone(epochs=2))


def write_job(folder: Path, size: str) -> None:
    program = Path(__file__).parents[1] / "programs" / "elastic_slow.py"
    (folder / "job.yaml").write_text(
        f"name: elastic\ncommand: [{program}, --save, {folder / 'weights.pt'}]\n"
        f"{size}max_restarts: 5\ncheckpoint_dir: checkpoints\n"
    )


def test_the_elastic_example_goes_on_in_a_smaller_world(tmp_path, clean):
    launcher = [sys.executable, "-m", "launcher"]
    write_job(tmp_path, "nnodes: '1:2'\nnproc_per_node: 1\n")
    run = subprocess.Popen(
        [*launcher, "run", "job.yaml", "--on", "local"],
        cwd=tmp_path,
        env={**clean, "STEP_S": "0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 100
        while not list(tmp_path.glob("checkpoints/step-*")):
            assert time.monotonic() < deadline
            assert run.poll() is None, run.communicate()
            time.sleep(0.05)
        scale = [*launcher, "scale", "1"]
        subprocess.run(scale, cwd=tmp_path, env=clean, check=True, capture_output=True)
        out, err = run.communicate(timeout=200)
    finally:
        run.kill()
    assert run.returncode == 0, out + err
    (line,) = (line for line in out.splitlines() if "continues " in line)
    epoch, processed = map(int, line.split("continues ")[1].split()[:2])
    assert line.endswith("size 1")
    same_weights(tmp_path / "weights.pt", elastic_alone(epochs=3, alone_from=(epoch, processed)))
