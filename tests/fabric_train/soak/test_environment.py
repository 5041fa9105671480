from __future__ import annotations

import subprocess
import sys


def test_new_memory_is_not_filled_before_a_kernel_writes_it():
    program = (
        "import torch; from fabric_train.environment import make_deterministic;"
        "make_deterministic();"
        "print(torch.are_deterministic_algorithms_enabled(),"
        "torch.utils.deterministic.fill_uninitialized_memory)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr
