"""Gloo's groups are gone before the interpreter ends, whatever of the script still holds them."""

import pytest

SCRIPT = """
import os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
import torch.distributed.nn  # its functions hold the group by their defaults
model = DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()

def names(listdir=os.listdir, open=open):
    tasks = listdir("/proc/self/task")
    return [open(f"/proc/self/task/{task}/comm").read().strip() for task in tasks]

print("while it runs:", *names())

class Last:
    def __del__(self, names=names):
        print("at the end:", *names())

last = Last()
{ending}
"""


@pytest.mark.parametrize("ending", ["", "dist.destroy_process_group()"])
def test_no_thread_of_a_group_is_left_when_the_interpreter_ends(place, ending):
    place.write(SCRIPT.replace("{ending}", ending))
    place.plan()
    assert place.run() == 0
    said = (place.rank() / "stdout").read_text()
    assert said.count("gloo") >= 1, said
    assert "gloo" not in said.partition("at the end:")[2], said
