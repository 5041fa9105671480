"""Scripts written for Horovod whose import was changed, against loops without it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
"""Of both processes together."""


@pytest.mark.parametrize("name", ["horovod_digits", "horovod_elastic"])
def test_nothing_but_the_import_is_ours(name):
    lines = (ROOT / f"examples/{name}.py").read_text().splitlines()
    ours = [line for line in lines if "fabric_train" in line]
    assert ours == ["import fabric_train.horovod as hvd  # was: import horovod.torch as hvd"]
