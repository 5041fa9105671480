"""What a build reuses, and what it refuses."""

import pytest

from launcher.contract.protocol import LABEL_CUDA, LABEL_TORCH
from tests.images.test_builds import append, layers

pytestmark = pytest.mark.docker


def test_a_code_change_replaces_the_code_and_the_smoke_tests_result_alone(
    built_project, image, inspect
):
    before = layers(inspect(image))
    module = built_project.root / "train/__init__.py"
    original = append(module, f"# changed by {image}")
    try:
        done = built_project.build()
        after = layers(inspect(image))
    finally:
        module.write_text(original)
        built_project.build()
    assert "was built" in done.stdout
    assert after[-2:] != before[-2:]
    assert after[:-2] == before[:-2]


def test_an_image_that_lost_its_tag_to_a_newer_build_is_removed(
    built_project, image, inspect, docker
):
    plain = inspect(image)["Id"]
    # Of an odd group: a plain build is the same image as fabric-train:cpu, which keeps its tag.
    built_project.build("--build-arg", "GID=2001")
    before = inspect(image)["Id"]
    done = built_project.build("--build-arg", "UID=2000")
    assert "was built" in done.stdout
    assert inspect(image)["Config"]["User"].startswith("2000:")
    assert before not in docker("image", "ls", "--all", "--quiet", "--no-trunc")
    docker("image", "tag", image, f"{image}-kept")
    built_project.build()
    assert inspect(f"{image}-kept")["Config"]["User"].startswith("2000:")
    docker("image", "rm", f"{image}-kept")
    assert inspect(image)["Id"] == plain


def test_a_label_that_lies_fails_the_build(built_project):
    done = built_project.build("--build-arg", "TORCH_VERSION=1.0.0", IMAGE="fabric-train:lies")
    assert done.returncode == 1
    assert "TORCH_VERSION is 1.0.0, the image holds torch 2." in done.stderr


def test_a_target_of_another_flavor_than_asked_for_fails_the_build(built_project, image, inspect):
    cuda = inspect(image)["Config"]["Labels"][LABEL_CUDA]
    done = built_project.build(
        "--build-arg", "FLAVOR=cuda", CUDA_VERSION=cuda, IMAGE="fabric-train:mixed"
    )
    assert done.returncode == 1
    assert "/smoke/cpu.json" in built_project.log()


@pytest.fixture
def cuda_build(built_project, image, inspect) -> dict[str, str]:
    """Variables that build the cuda target from the CPU image's base and wheels."""
    if not list((built_project.root / "wheelhouse").glob("*.whl")):
        pytest.skip("there is no wheelhouse: make wheelhouse")
    base = inspect(image)["Config"]["Labels"]["org.opencontainers.image.base.name"]
    return {"FLAVOR": "cuda", "WHEELHOUSE": "wheelhouse", "BASE_IMAGE": base}


def test_the_cuda_target_builds_on_the_same_base_from_cpu_wheels(
    built_project, image, cuda_build, inspect, docker
):
    name = f"{image}-cuda"
    done = built_project.build(**cuda_build, CUDA_VERSION="", IMAGE=name)
    assert done.returncode == 0, done.stderr + built_project.log("cuda")
    assert "as CUDA_VERSION is empty, with a CPU build of torch" in done.stdout
    config = inspect(name)["Config"]
    docker("image", "rm", name)
    assert config["Labels"][LABEL_CUDA] == ""
    assert config["Labels"][LABEL_TORCH] == inspect(image)["Config"]["Labels"][LABEL_TORCH]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in config["Env"]


def test_a_cpu_build_of_torch_in_a_cuda_image_is_refused_unless_asked_for(
    built_project, cuda_build
):
    done = built_project.build(**cuda_build, IMAGE="fabric-train:no-cuda")
    assert done.returncode == 1
    assert "is a CPU build, but CUDA is asked for" in done.stderr
    assert "CUDA_VERSION= (empty)" in done.stderr
