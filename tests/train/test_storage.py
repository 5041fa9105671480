"""Checkpoints and logs in a bucket of a real server, in another process, that speaks S3 or GCS."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from fabric_train.checkpoint import CheckpointStore
from fabric_train.errors import InputError
from fabric_train.manifest import check_files, read_manifest
from fabric_train.storage import Storage, open_url
from fabric_train.worker_env import WorkerEnv
from tests.fabric_train.forked import find_free_port
from tests.waiting import wait_until as wait_for
from train.config import TrainConfig
from train.loop import train as run_training

boto3 = pytest.importorskip("boto3", reason="moto[s3] is missing")
pytest.importorskip("s3fs")
READ_ONLY_GCS = Path(__file__).parent / "programs/read_only_gcs.py"
OPTIONS = ("--log_every=1", "--warmup_steps=3", "--loggers=csv,tensorboard")


class Server:
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
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

        def answers() -> bool:
            try:
                return urllib.request.urlopen(f"{self.url}/moto-api/", timeout=5).status == 200
            except OSError:
                return False

        wait_for(answers, 120)
        options = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        self.s3 = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **options)
        self.s3.create_bucket(Bucket="bucket")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def read(self, name: str) -> str:
        return self.s3.get_object(Bucket="bucket", Key=f"run/{name}")["Body"].read().decode()

    def names(self) -> list[str]:
        found = self.s3.list_objects_v2(Bucket="bucket").get("Contents", [])
        return [entry["Key"] for entry in found]


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.end()


class GcsServer:
    """Google's storage by an emulator, whose bucket is a folder that outlives its process."""

    def __init__(self, folder: Path) -> None:
        self.port = str(find_free_port())
        # Without the second, gcsfs asks Google's own servers about each bucket first.
        self.env = {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self.port}",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        self._folder = folder
        self.start()

    def start(self, *program: str) -> None:
        program = program or ("-m", "gcp_storage_emulator")
        command = [sys.executable, *program, "-d", str(self._folder), "start"]
        command += ["--host", "127.0.0.1", "--port", self.port, "--default-bucket", "bucket"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(lambda: self.find("") is not None, 120)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, path: str) -> bytes | None:
        try:
            with urllib.request.urlopen(f"{self.env['STORAGE_EMULATOR_HOST']}/{path}") as answer:
                return answer.read()
        except OSError:
            return None

    def read(self, name: str) -> bytes | None:
        return self.ask(f"download/storage/v1/b/bucket/o/run%2F{quote(name, '')}?alt=media")

    def find(self, prefix: str) -> dict[str, int] | None:
        """Sizes by name."""
        told = self.ask(f"storage/v1/b/bucket/o?prefix=run/{prefix}")
        if told is None:
            return None
        return {item["name"]: int(item["size"]) for item in json.loads(told).get("items", [])}


@pytest.fixture
def gcs(tmp_path: Path) -> Iterator[GcsServer]:
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    one = GcsServer(tmp_path / "gcs")
    yield one
    one.end()


def read_steps(folder: Path) -> list[int]:
    with (folder / "logs/csv/metrics.csv").open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


@pytest.mark.slow
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


def test_rank_0_is_killed_while_its_gcs_bucket_is_away_and_nothing_is_lost(
    gcs, processes, finish, wait_until, tmp_path
):
    program = ("-m", "train", *OPTIONS, "--storage=gs://bucket/run", "--checkpoint_every_s=0.2")
    program += ("--checkpoint_dir=a", "--epochs=400")
    first = processes.fork(*program, ranks=2, **gcs.env)
    wait_until(lambda: gcs.read("latest"), first)
    gcs.end()  # in the midst of a file, as it sends nearly all the time
    before = (tmp_path / "a/latest").resolve().name
    wait_until(lambda: (tmp_path / "a/latest").resolve().name > before, first)
    first.kill()  # rank 0 first, by SIGKILL
    gcs.start()
    # What the bucket calls its latest is whole.
    there = gcs.read("latest").decode().strip()
    manifest = json.loads(gcs.read(f"{there}/manifest.json"))
    sizes = gcs.find(there)
    for name, file in manifest["files"].items():
        assert sizes[f"run/{there}/{name}"] == file["bytes"]
    newest = (tmp_path / "a/latest").resolve().name
    assert there < newest

    # The folder has a newer one, from which the training goes on.
    step = int(newest.split("-")[1])
    again = (*program, f"--max_steps={step + 20}")
    code, out, err = finish(processes.fork(*again, ranks=2, **gcs.env))
    assert code == 0, err
    assert f"resumes after step {step} " in out
    assert "fetched" not in out
    last = (tmp_path / "a/latest").resolve().name
    assert gcs.read("latest").decode().strip() == last
    assert read_steps(tmp_path / "a") == list(range(1, step + 21))

    # A machine that has nothing goes on from the bucket.
    elsewhere = (*program, f"--max_steps={step + 30}", "--checkpoint_dir=b")
    code, out, err = finish(processes.fork(*elsewhere, **gcs.env))
    assert code == 0, err
    assert f"fetched gs://bucket/run/{last}" in out
    code, _, err = finish(processes.fork("-m", "train", "--storage=gs://nobodys/run", **gcs.env))
    assert (code, "cannot be written to" in err, "Traceback" in err) == (2, True, False), err


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
