"""Leases of one host: all or nothing, and freed with the process that holds them."""

import os
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.targets.hosts.program import leases
from launcher.targets.hosts.program.leases import HeldError
from launcher.targets.hosts.program.messages import Lease

ROOT = Path(__file__).parents[4]


def lease(run_id: str, *gpus: str, slots: int = 0) -> Lease:
    return Lease(run_id=run_id, node_index=0, owner="me@here", gpus=gpus, slots=slots)


def told(folder: str) -> list[tuple[str, str]]:
    return [(le.run_id, le.holding) for le in leases.read_leases(folder)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(leases, "TAKE_LIMIT_S", 0.1)
    return str(tmp_path / "leases")


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Ends a test that waits in the kernel."""

    def fail(signum: int, frame: object) -> None:
        raise AssertionError("it waits")

    usual = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


def test_what_is_held_is_not_given_again_until_it_is_given_back(folder, tmp_path):
    first = leases.acquire(folder, lease("a", "0", "1"), None)
    with pytest.raises(HeldError) as error:
        leases.acquire(folder, lease("b", "1", "2"), None)
    assert [held.run_id for held in error.value.leases] == ["a"]
    second = leases.acquire(folder, lease("b", "2"), None)
    assert told(folder) == [("a", "GPUs 0,1"), ("b", "GPUs 2")]
    leases.release(first)
    assert told(folder) == [("b", "GPUs 2")]
    leases.release(second)
    assert list(tmp_path.iterdir()) == []
    leases.release(leases.acquire(folder, lease("c", "0"), None))


def test_slots_are_counted_up_to_the_hosts_limit(folder):
    first = leases.acquire(folder, lease("a", slots=2), 3)
    leases.acquire(folder, lease("b", slots=1), 3)
    with pytest.raises(HeldError) as error:
        leases.acquire(folder, lease("c", slots=1), 3)
    assert [held.run_id for held in error.value.leases] == ["a", "b"]
    leases.release(first)
    leases.acquire(folder, lease("c", slots=1), 3)
    leases.acquire(folder, lease("d", slots=5), None)
    assert ("d", "5 slots") in told(folder)


HOLDS = """
import sys, time
from launcher.targets.hosts.program import leases
from launcher.targets.hosts.program.messages import Lease
lease = Lease(run_id="killed", node_index=0, owner="me", gpus=["0"], slots=0)
leases.acquire(sys.argv[1], lease, None)
print("held", flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_held_is_free_at_once(folder):
    argv = [sys.executable, "-c", HOLDS, folder]
    holder = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE)
    holder.stdout.readline()
    assert told(folder) == [("killed", "GPUs 0")]
    holder.kill()
    holder.communicate()
    assert told(folder) == []
    leases.acquire(folder, lease("a", "0"), None)
    assert told(folder) == [("a", "GPUs 0")]


COMES_AND_GOES = """
import sys
from launcher.targets.hosts.program import leases
from launcher.targets.hosts.program.messages import Lease
leases.TAKE_LIMIT_S = 60
for turn in range(40):
    lease = Lease(run_id=sys.argv[2], node_index=0, owner="me", gpus=["0"], slots=0)
    held = leases.acquire(sys.argv[1], lease, None)
    (own,) = leases.read_leases(sys.argv[1])
    assert (own.run_id, own.gpus) == (sys.argv[2], ("0",))
    leases.release(held)
"""


def test_many_who_come_and_go_at_once_never_hold_the_same(folder, tmp_path):
    words = [sys.executable, "-c", COMES_AND_GOES, folder]
    children = [subprocess.Popen([*words, f"r{i}"], cwd=ROOT) for i in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    assert list(tmp_path.iterdir()) == []


# -- files that are no leases ---------------------------------------------------------------------


def test_a_pipe_or_a_link_is_no_lease_and_nothing_is_done_to_what_it_names(folder, tmp_path):
    held = leases.acquire(folder, lease("a", "0"), None)
    os.mkfifo(tmp_path / "leases/gpu-1")
    target = tmp_path / "precious"
    target.write_text("own")
    (tmp_path / "leases/gpu-2").symlink_to(target)
    assert told(folder) == [("a", "GPUs 0")]
    with pytest.raises(OSError, match="symbolic links"):
        leases.acquire(folder, lease("b", "2"), None)
    leases.release(held)
    assert target.read_text() == "own"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 20_000,
        "7",
        lease("b").having(taken_at="then").to_json(),
        lease("b").having(run_id=7).to_json(),
        lease("b").having(taken_at=1.0, owner="o" * (1 << 20)).to_json(),
    ],
    ids=["empty", "deep", "number", "time", "run", "large"],
)
def test_what_is_locked_is_held_whatever_is_written_there(content, folder, tmp_path):
    leases.acquire(folder, lease("a", "0"), None)
    (tmp_path / "leases/gpu-0").write_text(content)
    unknown = Lease(run_id="unknown", node_index=0, owner="somebody", gpus=("0",), slots=0)
    assert leases.read_leases(folder) == [unknown]


def test_a_lease_is_told_with_its_age_by_the_host_s_clock(folder):
    for slots, gpus in ((2, ()), (0, ("0",))):
        held = leases.acquire(folder, lease("a", *gpus, slots=slots), None)
        (told,) = leases.read_leases(folder)
        assert 0.0 <= told.age_s <= time.time() - told.taken_at < 60.0
        own = lease("a", *gpus, slots=slots)
        assert told == own.having(taken_at=told.taken_at, age_s=told.age_s)
        leases.release(held)
    (ahead,) = [leases.parse_lease(own.having(taken_at=time.time() + 60).to_json().encode())]
    assert ahead.age_s == 0.0
    before = leases.parse_lease(own.having(taken_at=time.time() - 60).to_json().encode())
    assert 60.0 <= before.age_s < 90.0


def test_nobody_says_of_another_gpu_that_it_is_held(folder, tmp_path):
    leases.acquire(folder, lease("a", "0"), None)
    (tmp_path / "leases/gpu-0").write_text(lease("a", "0", "1", "2").having(taken_at=1.0).to_json())
    assert told(folder) == [("a", "GPUs 0")]


# -- two people are two uids ----------------------------------------------------------------------

NOBODY = 65534


def as_nobody(work: Callable[[], None]) -> None:
    """In a process of another user; what it raises, an assertion too, fails the test."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.umask(0o077)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")
def test_two_users_share_a_folder_and_neither_takes_what_the_other_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "TAKE_LIMIT_S", 0.1)
    for parent in (tmp_path, *tmp_path.parents[:-2]):
        parent.chmod(parent.stat().st_mode | 0o011)
    shared = tmp_path / "shm"
    shared.mkdir()
    shared.chmod(0o1777)
    folder = str(shared / "leases")

    def theirs() -> None:
        # Their process ends without giving it back.
        leases.acquire(folder, lease("theirs", "0"), None)

    def refused() -> None:
        with pytest.raises(HeldError) as error:
            leases.acquire(folder, lease("theirs", "0"), None)
        assert [held.run_id for held in error.value.leases] == ["roots"]
        leases.release(leases.acquire(folder, lease("theirs", "1"), None))

    as_nobody(theirs)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o1777
    held = leases.acquire(folder, lease("roots", "0"), None)
    assert told(folder) == [("roots", "GPUs 0")]
    as_nobody(refused)
    assert told(folder) == [("roots", "GPUs 0")]
    leases.release(held)
    assert told(folder) == []
