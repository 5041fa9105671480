"""What has to work with every supported torch; ``make compat TORCH=2.6.0`` runs it with that one.

The nodes run in the interpreter that COMPAT_PYTHON names, which needs torch and nothing else; left
out, in this one. The launcher and these tests are always this project's own.
"""

import os
import sys

from launcher.contract import protocol
from launcher.plan.torchrun import parse_torch_version
from launcher.targets.interpreter import read_torch_version

PYTHON = os.environ.get("COMPAT_PYTHON") or sys.executable


def test_the_torch_under_test_is_one_that_is_supported():
    assert parse_torch_version(read_torch_version(PYTHON)) >= protocol.OLDEST_TORCH
