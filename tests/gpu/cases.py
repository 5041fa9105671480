"""What needs a GPU: ``python -m tests.gpu case NAME`` runs one case, in a process of its own.

With GPU_DRY=1 the CPU stands in for CUDA, gloo for NCCL. Lines that then do not run end in # cuda.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
DRY = os.environ.get("GPU_DRY") == "1"
DEVICE, BACKEND = ("cpu", "gloo") if DRY else ("cuda", "nccl")
SKIPPED = 77
"""Exit code of a case that says why it was skipped."""


def skip(why: str) -> NoReturn:
    """Ends a case that this machine cannot run."""
    print(why)
    raise SystemExit(SKIPPED)


def run(folder: Path, *words: str, **environ: str) -> str:
    """``python`` with these words; its output. Fails with that if it does not end well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_")}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        (sys.executable, *words), cwd=folder, env={**kept, **environ}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def train(folder: Path, *options: str) -> dict[str, Any]:
    """One epoch of ``python -m train`` on one device; its metrics."""
    folder.mkdir(exist_ok=True)
    fixed = ("--epochs=1", f"--accelerator={DEVICE}", f"--checkpoint_dir={folder / 'checkpoints'}")
    run(folder, "-m", "train", *fixed, *options, RUN_DIR=str(folder))
    return json.loads((folder / "metrics.json").read_text())


def launch(folder: Path, script: str, *options: str) -> str:
    """A script under the launcher, by its name among the programs beside this file."""
    words = ("run", str(PROGRAMS / script), "--on", "local")
    dry = ("--set", f"env.GPU_DRY={int(DRY)}")
    return run(folder, "-m", "launcher", *words, *dry, *options)


def count_devices() -> int:
    """Devices to use; in a dry run two processes share the CPU."""
    import torch

    return 2 if DRY else torch.cuda.device_count()


# -- cases ----------------------------------------------------------------------------------------


def strategies(folder: Path) -> str:
    """dp, and model_parallel between a GPU and the host's memory, train what one device trains."""
    import torch
    from torch import nn

    from fabric_train.strategies import make_strategy
    from fabric_train.strategies.strategy import Place

    def trained(name: str, options: dict[str, Any]) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        device = torch.device(DEVICE, 0) if name in ("ddp", "dp") else torch.device("cpu")
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        strategy = make_strategy(name, options)
        strategy.setup(model, lambda w: torch.optim.SGD(w, lr=0.1), Place(device=device))
        for number in range(3):
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number)).to(device)
            strategy.backward(strategy.model(inputs).square().mean())
            strategy.step(number)
        return {key: value.cpu() for key, value in strategy.gather_weights().items()}

    alone = trained("ddp", {})
    others = [("model_parallel", {"layers": f"[01]=cpu,2={DEVICE}:0"})]
    others += [] if DRY else [("dp", {})]  # cuda
    for name, options in others:
        torch.testing.assert_close(trained(name, options), alone, rtol=1e-4, atol=1e-6)
    return ", ".join(name for name, _ in others)


def forked_workers(folder: Path) -> str:
    """``start: fork`` and ``fresh``: workers begin before CUDA does, and use it."""
    for start in ("fork", "fresh"):
        said = launch(folder, "first.py", "--nproc-per-node=1", "--set", f"start={start}")
        assert "first step on " + DEVICE in said, said
    return "fork, fresh"


def gpu_gate(folder: Path) -> str:
    """The driver's library tells the memory in use, which comes back when a worker is killed."""
    from launcher.agent.engine.gpu_memory import open_devices

    used_bytes = open_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if used_bytes is None:
        assert DRY, "no libnvidia-ml.so.1, or it names no device"
        skip("no driver")
    before = used_bytes()  # cuda
    holder = (  # cuda
        "import torch, time; held = torch.ones(1 << 28, device='cuda');"
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        (sys.executable, "-c", holder), stdout=subprocess.PIPE
    ) as process:  # cuda
        assert process.stdout  # cuda
        assert process.stdout.readline() == b"held\n"  # cuda
        more = max(used_bytes()[name] - before[name] for name in before)  # cuda
        process.kill()  # cuda
    assert more >= 1 << 30, f"1 GiB was taken, and {more} bytes were seen"  # cuda
    deadline = time.monotonic() + 20  # cuda
    while max(used_bytes()[name] - before[name] for name in before) > 256 << 20:  # cuda
        assert time.monotonic() < deadline, "the memory does not come back"  # cuda
        time.sleep(0.05)  # cuda
    return f"{len(before)} devices"  # cuda


def health(folder: Path) -> str:
    """``launcher doctor`` measures an all-reduce on the node's devices, and finds no fault."""
    script = str(PROGRAMS / "collective.py")
    said = run(folder, "-m", "launcher", "doctor", script, "--on", "local", "--nproc-per-node=1")
    return next(line for line in said.splitlines() if "all-reduce" in line).strip()


def collectives(folder: Path) -> str:
    """NCCL with one rank, and with one for each device."""
    counts = sorted({1, min(8, count_devices())})
    for count in counts:
        said = launch(folder, "collective.py", f"--nproc-per-node={count}")
        assert f"sum {count * (count + 1) // 2} by {BACKEND}" in said, said
    return f"ranks: {', '.join(map(str, counts))}"


def precisions(folder: Path) -> str:
    """Each precision of ``train`` learns on the device."""
    from typing import get_args, get_type_hints

    from train.config import TrainConfig

    told = []
    for precision in get_args(get_type_hints(TrainConfig)["precision"]):
        found = train(folder / precision, f"--precision={precision}", "--epochs=3")
        assert found["train_loss"] < 2.2, found
        told.append(f"{precision} {found['train_loss']:.3f}")
    return ", ".join(told)


def background_saves(folder: Path) -> str:
    """A save beside the training holds the weights of its step, from pinned memory."""
    import torch
    from torch import nn

    from fabric_train import Saver

    model = nn.Linear(2048, 1024).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    saver = Saver(folder, config={})
    saver.resume(model, optimizer)
    model(torch.ones(8, 2048, device=DEVICE)).sum().backward()
    optimizer.step()
    expected = model.weight.detach().clone()
    saver.save(1, model, optimizer)
    with torch.no_grad():
        model.weight.zero_()  # while the copy is written
    saver.wait()
    assert DRY or saver._staged_copy.is_pinned, "the copy was not pinned"  # cuda
    saver.join(10)
    Saver(folder, config={}).resume(model, optimizer)
    assert torch.equal(model.weight, expected)
    return "pinned" if not DRY else "not pinned"


def exact(folder: Path) -> str:
    """``--reduction exact``: the same bits twice, and by several GPUs where there are several."""
    options = ("--reduction=exact", "--virtual_shards=4", "--epochs=1")
    hashes = {train(folder / name, *options)["weights_sha256"] for name in ("one", "two")}
    assert len(hashes) == 1, hashes
    if count_devices() > 1:
        said = launch(
            folder, "exact.py", f"--nproc-per-node={min(4, count_devices())}", "--", *options
        )
        assert hashes.pop() in said, said
    return f"devices: {count_devices()}"


def step_time(folder: Path) -> str:
    """A step of the strategy ddp against raw DDP, and the most memory of both."""
    said = launch(folder, "steps.py", "--nproc-per-node=1")
    return next(line for line in said.splitlines() if "ours" in line)


def restart(folder: Path) -> str:
    """A killed CUDA worker is started again, and uses the device again."""
    said = launch(folder, "falls.py", "--nproc-per-node=1", "--max-restarts=1")
    assert "second start on " + DEVICE in said, said
    return "SIGKILL in a step"


def heal(folder: Path) -> str:
    """A node is killed, or freezes, in a step; the other makes the next in the same process."""
    options = ("--nnodes=1:2", "--nproc-per-node=1", "--set=agent.detection_limit_s=1")
    for fault in ("SIGKILL", "SIGSTOP"):
        said = launch(folder, "heals.py", *options, "--", fault)
        lines = [line.split()[-4:] for line in said.splitlines() if line.endswith(("nccl", "gloo"))]
        assert len({pid for pid, *_ in lines}) == 1, said
        assert [int(step) for _, step, *_ in lines] == list(range(1, 61)), said
        assert "healed 0 times" not in said, said
        used = [int(size) for *_, size, _ in lines]
        assert max(used) <= 2 * max(used[:5]), f"memory of a broken-off step is held: {used}"
    return f"SIGKILL and SIGSTOP, by {lines[0][3]}"


def profiler(folder: Path) -> str:
    """A profiler's trace of our step holds kernels, beside what the CPU did."""
    said = launch(folder, "profiled.py", "--nproc-per-node=1")
    return next(line for line in said.splitlines() if "events of the CPU" in line)


def trainer(folder: Path) -> str:
    """Lightning's Trainer with the callback under ddp and fsdp goes on after a stop."""
    for strategy in ("auto",) if DRY else ("ddp", "fsdp"):  # cuda
        for steps in ("6", "12"):
            options = (f"--set=checkpoint_dir={folder / strategy}", "--", strategy, steps)
            said = launch(folder, "fitted.py", "--nproc-per-node=1", *options)
            assert f"at step {steps}" in said, said
        assert "goes on after step 6" in said, said
    return "one device" if DRY else "ddp, fsdp"


def image(folder: Path) -> str:
    """The cuda image trains in a container, where an engine with NVIDIA's runtime holds it."""
    for command, why in (
        (("docker", "info", "--format", "{{json .Runtimes}}"), "no Docker engine"),
        (("docker", "image", "inspect", "fabric-train:cuda"), "no image fabric-train:cuda"),
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except OSError:
            skip(why)
        if done.returncode:
            skip(why)
        if command[1] == "info" and "nvidia" not in done.stdout:
            skip("the engine has no NVIDIA runtime")
    job = str(ROOT / "jobs/digits.yaml")  # cuda
    options = ("--on", "docker", "--image", "fabric-train:cuda", "--nproc-per-node", "1")  # cuda
    run(folder, "-m", "launcher", "run", job, *options, "--", "--epochs=1")  # cuda
    return "digits"  # cuda


CASES: dict[str, tuple[Callable[[Path], str], float]] = {
    "strategies": (strategies, 40),
    "collectives": (collectives, 60),
    "forked workers": (forked_workers, 60),
    "GPU gate": (gpu_gate, 60),
    "health probe": (health, 60),
    "precisions": (precisions, 90),
    "background saves": (background_saves, 40),
    "exact bits": (exact, 90),
    "step time and memory": (step_time, 60),
    "restart": (restart, 60),
    "heal in place": (heal, 180),
    "profiler": (profiler, 60),
    "Trainer": (trainer, 120),
    "cuda image": (image, 120),
}
"""By name: the case, and how many seconds it may take."""


def run_case(name: str) -> None:
    """Runs one in a folder of its own, and prints what it has to tell."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(CASES[name][0](Path(folder)))
        except ImportError as error:  # of this process; a worker's fails its case
            skip(f"this environment lacks what is asked for: {error}")
