"""``import fabric_train``: cheap, complete, and the same to people and to type checkers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fabric_train


def test_the_library_needs_no_torch_and_saving_and_exact_reduction_no_lightning():
    program = (
        "import fabric_train, sys; from fabric_train import Preemption, parse_worker_env;"
        "assert not {'torch', 'numpy', 'lightning'} & set(sys.modules);"
        "from fabric_train import Continuity, ExactReduction, Saver, make_deterministic;"
        "assert 'lightning' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("name", fabric_train.__all__)
def test_each_public_name_is_there_and_documented(name):
    value = getattr(fabric_train, name)
    assert name in dir(fabric_train)
    assert isinstance(value, int) or value.__doc__


def test_what_type_checkers_see_is_what_can_be_imported():
    (block,) = (
        node
        for node in ast.parse(Path(fabric_train.__file__).read_text()).body
        if isinstance(node, ast.If)
    )
    declared = {
        (alias.name, (node.module or "").removeprefix("fabric_train."))
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == set(fabric_train._MODULE_OF.items())
    assert {name for name, _ in declared} == set(fabric_train.__all__)


def test_another_name_is_refused_as_python_does():
    with pytest.raises(AttributeError, match="no attribute 'Savor'"):
        fabric_train.Savor  # noqa: B018
    with pytest.raises(ImportError, match="Savor"):
        from fabric_train import Savor  # noqa: F401
