"""The train extra: how it is read, and which wheels fit."""

import pytest

from images.dependencies import DependencyError, find_unfit_wheels, parse_requirements, wheel_tags

EXTRA = "[project.optional-dependencies]\ntrain = {}\n"
IMAGE_TAGS = (
    "cp311-cp311-manylinux_2_28_x86_64",
    "cp311-abi3-manylinux_2_17_x86_64",
    "py3-none-any",
)


def test_torch_is_listed_first_because_it_decides_the_build_of_the_rest():
    extra = EXTRA.format('["lightning==2.6.6", "torch==2.13.0", "scikit-learn>=1.6,<2"]')
    assert parse_requirements(extra) == (
        "torch==2.13.0",
        "lightning==2.6.6",
        "scikit-learn>=1.6,<2",
    )


@pytest.mark.parametrize("extra", ['["torch>=2.13"]', '["lightning"]', '["torch==1", "torch==2"]'])
def test_a_torch_that_is_not_pinned_to_one_version_is_refused(extra):
    with pytest.raises(DependencyError, match=r"does not pin torch.*\n  fix: "):
        parse_requirements(EXTRA.format(extra))


def test_dots_in_a_wheels_name_mean_one_tag_or_the_other():
    assert wheel_tags("six-1.16.0-py2.py3-none-any.whl") == {"py2-none-any", "py3-none-any"}


@pytest.mark.parametrize(
    ("tags", "fits"),
    [
        pytest.param(["1-py3-none-any"], True, id="pure Python"),
        pytest.param(["2-cp311-cp311-manylinux_2_28_x86_64"], True, id="the image's Python"),
        pytest.param(["2-cp311-abi3-manylinux1_x86_64.manylinux_2_17_x86_64"], True, id="abi3"),
        pytest.param(["2-cp312-cp312-manylinux_2_28_x86_64"], False, id="another Python"),
        pytest.param(["2-cp311-cp311-macosx_14_0_arm64"], False, id="another system"),
        pytest.param(["2-1-cp312-cp312-manylinux_2_28_x86_64"], False, id="with a build number"),
        pytest.param(["2-cp311-cp311-manylinux_2_28_x86_64", "2-cp312-cp312-manylinux_2_28_x86_64"],
            True, id="one of two"),
    ],
)  # fmt: skip
def test_a_distribution_is_unfit_if_not_one_of_its_wheels_fits(tags, fits):
    wheels = [f"torch-{tag}.whl" for tag in tags]
    other = "numpy-2-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert list(find_unfit_wheels([*wheels, other], IMAGE_TAGS)) == ([] if fits else wheels)
