"""Labels that differ from what is in the image."""

import pytest

from images.smoke import find_lies

CPU = {"torch": "2.13.0+cpu", "cuda": ""}
CUDA = {"torch": "2.13.0+cu130", "cuda": "13.0"}


@pytest.mark.parametrize(
    ("torch", "cuda", "found", "lies"),
    [
        pytest.param("2.13.0", "", CPU, [], id="a CPU build"),
        pytest.param("2.13.0", "13.0", CUDA, [], id="a CUDA build"),
        pytest.param("2.12.0", "", CPU, ["TORCH_VERSION is 2.12.0"], id="another torch"),
        pytest.param("", "", CPU, ["TORCH_VERSION is empty"], id="no torch version"),
        pytest.param("2.13.0", "13.0", CPU, ["to have 13.0 CUDA"], id="no CUDA inside"),
        pytest.param("2.13.0", "", CUDA, ["to have no CUDA"], id="CUDA inside"),
        pytest.param("2.12.0", "12.8", CUDA, ["is 2.12.0", "to have 12.8 CUDA"], id="both"),
    ],
)
def test_each_label_that_differs_is_named_with_its_fix(torch, cuda, found, lies):
    told = find_lies("cpu", {"torch": torch, "cuda": cuda}, found)
    assert len(told) == len(lies)
    for line, part in zip(told, lies, strict=True):
        assert part in line
        assert "\n  fix: " in line
