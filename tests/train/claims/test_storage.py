"""Checkpoints and logs in a bucket of a real server, in another process, that speaks S3 or GCS."""

import csv
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.fabric_train.forked import find_free_port
from tests.waiting import wait_until as wait_for

pytest.importorskip("s3fs")


OPTIONS = ("--log_every=1", "--warmup_steps=3", "--loggers=csv,tensorboard")


class Server:
    """A process that keeps a bucket."""

    def begin(self, command: list[str], answers: Callable[[], bool]) -> None:
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=null, stderr=null)
        wait_for(answers, 120)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class GcsServer(Server):
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
        self.begin(command, lambda: self.find("") is not None)

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
