"""The example scripts under torchrun itself; `launcher run` runs them, and failing.py, as well."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("script", ["raw_ddp.py", "fabric.py", "trainer.py", "failing.py"])
def test_an_example_knows_nothing_of_this_project(script):
    imported = [
        line.split()[1].partition(".")[0]
        for line in (FOLDER / script).read_text().splitlines()
        if line.startswith(("import ", "from "))
    ]
    assert set(imported) <= {"os", "sys", "torch", "lightning"}
