"""JobSpec as a value: frozen, equal by content, and safe when it is made without a job file."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import launcher.job
from launcher.job.spec import JobSpec, RdzvConfSpec
from launcher.job.storage import parse_volume
from launcher.job.values import (
    NodeRange,
    NotAcceptedError,
    parse_nodes,
    parse_quantity_bytes,
    parse_variable,
)
from tests.launcher.values import by_place, changeable
from tests.programs import run_program


def make(**keys: object) -> JobSpec:
    return JobSpec.model_validate({"name": "digits", "command": "train.py"} | keys)


def test_a_job_cannot_be_changed():
    job = make()
    with pytest.raises(ValidationError):
        job.name = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        job.rdzv.port = 1  # type: ignore[misc]


def test_what_a_job_holds_cannot_be_changed():
    assert changeable(launcher.job) == set()
    assert by_place(launcher.job) == {"NodeRange", "Conflict"}


def test_variables_keep_their_order():
    assert make(env={"B": 1, "A": True, "C": 0.5}).env == (("B", "1"), ("A", "true"), ("C", "0.5"))


def test_a_fixed_group_may_be_static_whatever_its_size():
    assert make(nnodes="4:4", rdzv={"backend": "static"}).is_elastic is False


@pytest.mark.parametrize(
    ("text", "volume"),
    [
        ("pvc/a:/b", ("a", "", "/b", False)),
        ("pvc/a/c//d:/b/:ro", ("a", "c/d", "/b", True)),
        ("pvc/a.x:/b:rw", ("a.x", "", "/b", False)),
    ],
)
def test_a_volume_is_a_claims_folder_and_its_place(text, volume):
    made = parse_volume(text)
    assert (made.claim.name, made.claim.folder, made.target, made.read_only) == volume


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_a_range_of_nodes_reads_back_from_its_text(low, more):
    nodes = NodeRange(low, low + more)
    assert parse_nodes(str(nodes)) == nodes
    assert nodes.is_elastic == (more > 0)


@pytest.mark.parametrize(
    ("quantity", "n_bytes"),
    [
        ("1Mi", 2**20), ("8Gi", 8 * 2**30), ("1.5Gi", 3 * 2**29), ("2Ti", 2 * 2**40),
        ("1.5G", 1_500_000_000), ("64M", 64_000_000), ("2000k", 2_000_000), ("2048Ki", 2**21),
        ("1048576", 2**20), (1_048_576, 2**20), ("1.0000001Mi", 2**20 + 1), ("7Ei", 7 * 2**60),
    ],
)  # fmt: skip
def test_a_quantity_is_as_many_bytes_as_in_kubernetes(quantity, n_bytes):
    assert parse_quantity_bytes(quantity) == n_bytes


@pytest.mark.parametrize(
    "quantity",
    ["", "Gi", "-1Gi", "1gi", "1K", "1m", "1e9", "1 Gi", "0x10", "8", "8Ei", "1.Gi", "\u0661Gi"],
)
def test_what_is_no_sensible_quantity_is_refused(quantity):
    with pytest.raises(NotAcceptedError):
        parse_quantity_bytes(quantity)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "NCCL_DEBUG", "_x", "RANKS", "MY_RANK", "PET"])
def test_a_variable_of_the_users_own_is_accepted(name):
    assert parse_variable(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK",
        "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "TORCHELASTIC_RUN_ID", "LAUNCHER_RUN_ID",
        "RUN_DIR", "CHECKPOINT_DIR", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    ],
)  # fmt: skip
def test_a_variable_that_torchrun_or_the_launcher_sets_is_refused(name):
    with pytest.raises(NotAcceptedError, match="names of your own"):
        parse_variable(name)


@pytest.mark.parametrize(
    "image",
    [
        "train", "train:1.4", "me/train", "ghcr.io/me/train:v1", "localhost:5000/a/b__c",
        "10.0.0.1:5000/a", f"a.b/c@sha256:{'0' * 64}", "fabric-train:cpu", "registry:5000/x:Y_1.z",
    ],
)  # fmt: skip
def test_an_image_may_be_any_reference_that_docker_takes(image):
    assert make(image=image).image == image


def test_a_setting_of_the_rendezvous_is_one_that_torch_reads():
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("torch is not installed")
    folder = Path(torch.origin).parent / "distributed/elastic/rendezvous"
    sources = "".join(path.read_text() for path in folder.glob("*.py"))
    known = [*RdzvConfSpec.model_fields]
    timeouts = [
        key for key in known if f'_get_timeout(params, "{key.removesuffix("_timeout")}")' in sources
    ]
    read = [key for key in known if f'("{key}"' in sources or f'["{key}"]' in sources]
    assert {*timeouts, *read} == {*known}


def run_python(code: str) -> str:
    done = run_program([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
    return done.stdout


def test_reading_a_job_file_imports_no_client_and_no_torch():
    heavy = run_python(
        "import sys, launcher.job.file\n"
        "print(*{'torch', 'docker', 'kubernetes', 'numpy', 'rich', 'asyncio'} & {*sys.modules})"
    )
    assert heavy.split() == []


def test_importing_the_package_imports_neither_pydantic_nor_yaml():
    loaded = run_python("import sys, launcher; print(*{'pydantic', 'yaml'} & {*sys.modules})")
    assert loaded.split() == []
