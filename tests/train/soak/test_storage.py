"""Checkpoints and logs in a bucket of a real server, in another process, that speaks S3 or GCS."""

import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabric_train.checkpointing.checkpoint import CheckpointStore
from fabric_train.checkpointing.manifest import check_files, read_manifest
from fabric_train.errors import InputError
from fabric_train.storage import Storage, open_url
from fabric_train.worker_env import WorkerEnv
from tests.fabric_train.forked import find_free_port
from tests.train.claims.test_storage import OPTIONS, Server, gcs, read_steps
from train.config import TrainConfig
from train.loop import train as run_training

boto3 = pytest.importorskip("boto3", reason="moto[s3] is missing")
READ_ONLY_GCS = Path(__file__).parents[1] / "programs/read_only_gcs.py"


class S3Server(Server):
    """moto's server, whose buckets end with its process."""

    def __init__(self) -> None:
        self.url = f"http://127.0.0.1:{find_free_port()}"
        self.start()

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self) -> None:
        port = self.url.rpartition(":")[2]
        command = [sys.executable, "-m", "moto.server", "-p", port]

        def answers() -> bool:
            try:
                return urllib.request.urlopen(f"{self.url}/moto-api/", timeout=5).status == 200
            except OSError:
                return False

        self.begin(command, answers)
        options = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        self.s3 = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **options)
        self.s3.create_bucket(Bucket="bucket")

    def read(self, name: str) -> str:
        return self.s3.get_object(Bucket="bucket", Key=f"run/{name}")["Body"].read().decode()

    def names(self) -> list[str]:
        found = self.s3.list_objects_v2(Bucket="bucket").get("Contents", [])
        return [entry["Key"] for entry in found]


@pytest.fixture
def server() -> Iterator[S3Server]:
    one = S3Server()
    yield one
    one.end()


def test_a_training_goes_on_from_a_bucket_that_was_away_for_a_while(
    server, processes, finish, wait_until, tmp_path
):
    program = ("-m", "train", *OPTIONS, "--storage=s3://bucket/run", "--checkpoint_every_s=0.2")
    first = processes.fork(*program, "--checkpoint_dir=a", "--epochs=30", **server.env)
    wait_until(lambda: "run/latest" in server.names(), first)
    server.end()
    wait_until(lambda: b"upload to s3://bucket/run failed" in first.said(), first)
    server.start()
    code, out, err = finish(first)
    assert code == 0, err
    assert "s3://bucket/run takes files again" in out
    newest = server.read("latest").strip()
    assert newest == (tmp_path / "a/latest").resolve().name
    kept = {path.name for path in (tmp_path / "a").glob("step-*")}
    found = {name.split("/")[1] for name in server.names() if name.startswith("run/step-")}
    assert found <= kept
    assert newest in found

    # Another machine, which has nothing, and another world.
    elsewhere = ("--checkpoint_dir=b", "--epochs=31")
    code, out, err = finish(processes.fork(*program, *elsewhere, ranks=2, **server.env))
    assert code == 0, err
    assert f"fetched s3://bucket/run/{newest}" in out
    steps = read_steps(tmp_path / "b")
    assert steps == list(range(1, max(steps) + 1))
    assert server.read("logs/csv/metrics.csv") == (tmp_path / "b/logs/csv/metrics.csv").read_text()
    assert server.read("latest").strip() == (tmp_path / "b/latest").resolve().name


def test_a_bucket_without_rights_is_told_at_the_start(server, processes, finish):
    missing = ("-m", "train", "--storage=s3://nobodys/run")
    code, _, err = finish(processes.fork(*missing, **server.env))
    assert (code, "cannot be written to" in err, "Traceback" in err) == (2, True, False), err
    # From now on it asks for rights, and these credentials have none.
    asks = {"url": f"{server.url}/moto-api/reset-auth", "data": b"0"}
    as_text = {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(**asks, headers=as_text)).close()
    refused = ("-m", "train", "--storage=s3://bucket/run")
    code, _, err = finish(processes.fork(*refused, ranks=2, **server.env))
    assert (code, "give these credentials the right" in err) == (2, True), err
    assert "Traceback" not in err


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_gcs_bucket_that_one_may_only_read_is_told_at_the_start(
    gcs, processes, finish, has_checkpoint
):
    program = ("-m", "train", "--max_steps=2", "--checkpoint_dir=a")
    if has_checkpoint:
        assert finish(processes.fork(*program))[0] == 0
    gcs.end()
    gcs.start(str(READ_ONLY_GCS))
    code, _, err = finish(processes.fork(*program, "--storage=gs://bucket/run", **gcs.env))
    assert (code, "Traceback" in err) == (2, False), err
    assert "--storage gs://bucket/run cannot be written to: Forbidden" in err
    assert "give these credentials the right" in err


def test_a_folder_gets_whole_files_alone_and_gives_them_back(tmp_path, monkeypatch):
    url = (tmp_path / "there").as_uri()
    seen = []
    rename = os.rename

    def watch(source, target, **options):
        if "there" in str(target):
            seen.append(Path(target).name)
            assert not Path(target).exists() or Path(target).name == "latest"
        return rename(source, target, **options)

    monkeypatch.setattr(os, "rename", watch)
    config = TrainConfig(max_steps=3, checkpoint_dir=tmp_path / "a", storage=url)
    run_training(config, WorkerEnv())
    assert seen[-2:] == ["manifest.json", "latest"]
    there = tmp_path / "there" / (tmp_path / "there/latest").read_text().strip()
    check_files(there, read_manifest(there))
    assert not list(there.glob(".staging-*"))

    (there / "manifest.json").write_text("{")
    store = CheckpointStore(tmp_path / "b")
    store.open()
    with pytest.raises(OSError, match="cannot be read"):
        Storage(url, tmp_path / "b", print).fetch(store, None)
    with pytest.raises(InputError, match="--storage nosuch://x"):
        open_url("nosuch://x")
