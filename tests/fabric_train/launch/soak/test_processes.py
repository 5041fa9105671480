"""Processes that a program starts by itself: ddp_spawn, ddp_fork and ddp_notebook."""

import signal
from pathlib import Path

import psutil
import pytest

PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, {1, 130, -signal.SIGINT}), (signal.SIGKILL, {-signal.SIGKILL})],
)
def test_no_process_outlives_the_program_that_was_ended(
    processes, finish, wait_until, number, code
):
    program = processes.start(str(PROGRAMS / "own_processes.py"))
    children: list[psutil.Process] = []

    def both_train():
        children[:] = psutil.Process(program.pid).children(recursive=True)
        return len(children) >= 2 and all(each.status() == "sleeping" for each in children)

    wait_until(both_train, program)
    program.send_signal(number)
    assert finish(program)[0] in code
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


CELL = """
import torch
from fabric_train import WorkerEnv, launch_processes, make_strategy

def count(fabric, env, number):
    return env.world.world_size, fabric.all_reduce(torch.tensor(float(number)), reduce_op="sum")

told = [
    launch_processes(count, WorkerEnv(), number, strategy=make_strategy("ddp_notebook"))
    for number in (1, 2)
]
print([(size, value.item()) for size, value in told])
"""


def test_a_notebook_trains_with_two_processes_and_again_in_the_next_cell(clean):
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", env=clean)
    told: list[str] = []

    def hear(message):
        told.append(str(message["content"].get("text") or message["content"].get("traceback", "")))

    try:
        client.execute_interactive(CELL, timeout=120, output_hook=hear)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert "[(2, 2.0), (2, 4.0)]" in "".join(told)
