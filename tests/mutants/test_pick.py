"""Which faults ``make mutants`` tries."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("mutants", Path(__file__).parent / "__main__.py")

assert SPEC

assert SPEC.loader

mutants = importlib.util.module_from_spec(SPEC)

SPEC.loader.exec_module(mutants)


def test_a_file_is_tested_by_the_tests_that_name_its_module():
    assert mutants.find_tests("launcher/plan") == ["tests/launcher/plan"]
    whole = ["tests/launcher/targets/kubernetes"]
    assert mutants.find_tests("launcher/targets/kubernetes/pods") == whole
    found = mutants.find_tests("fabric_train/sampling/sampler.py")
    assert "tests/fabric_train/sampling/test_sampler.py" in found
    assert not [path for path in found if "/soak/" in path]
    with pytest.raises(ValueError, match="no test names"):
        mutants.find_tests("fabric_train/nothing.py")
