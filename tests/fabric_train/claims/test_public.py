"""``import fabric_train``: cheap, complete, and the same to people and to type checkers."""

from __future__ import annotations

import subprocess
import sys


def test_the_library_needs_no_torch_and_saving_and_exact_reduction_no_lightning():
    program = (
        "import fabric_train, sys; from fabric_train import Preemption, parse_worker_env;"
        "assert not {'torch', 'numpy', 'lightning'} & set(sys.modules);"
        "from fabric_train import Continuity, ExactReduction, Saver, make_deterministic;"
        "assert 'lightning' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
