"""Leases of one host: all or nothing, renewed, told stale from live."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import stat
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.targets.hosts.program.leases import LOCK, HeldError, LeaseBook
from launcher.targets.hosts.program.messages import Lease


def lease(run_id: str, *gpus: str, node_index: int = 0, slots: int = 0) -> Lease:
    return Lease(run_id=run_id, node_index=node_index, owner="me@here", gpus=gpus, slots=slots)


@pytest.fixture
def book(tmp_path: Path) -> LeaseBook:
    return LeaseBook(str(tmp_path / "leases"))


def test_what_is_held_is_not_given_again(book: LeaseBook) -> None:
    book.take(lease("a", "0", "1"), 10, None)
    with pytest.raises(HeldError) as error:
        book.take(lease("b", "1", "2"), 10, None)
    assert [held.run_id for held in error.value.leases] == ["a"]
    book.take(lease("b", "2"), 10, None)
    assert [(le.run_id, le.live) for le in book.read()] == [("a", True), ("b", True)]


def test_slots_are_counted_up_to_the_hosts_limit(book: LeaseBook) -> None:
    book.take(lease("a", slots=2), 10, 3)
    book.take(lease("b", slots=1), 10, 3)
    with pytest.raises(HeldError):
        book.take(lease("c", slots=1), 10, 3)
    book.release("a")
    book.take(lease("c", slots=1), 10, 3)


def test_an_expired_lease_holds_nothing_and_is_shown_as_stale(book: LeaseBook) -> None:
    book.take(lease("a", "0"), -1, None)
    assert [le.live for le in book.read()] == [False]
    book.take(lease("b", "0"), 10, None)


def test_a_renewed_lease_goes_on(book: LeaseBook) -> None:
    book.take(lease("a", "0"), -1, None)
    assert book.renew("a", 10) == 1
    assert (book.seconds_left("a", 0) or 0) > 5
    with pytest.raises(HeldError):
        book.take(lease("b", "0"), 10, None)


def test_a_renewal_that_comes_too_late_takes_nothing_from_another(book: LeaseBook) -> None:
    book.take(lease("a", "0"), -1, None)
    book.take(lease("b", "0"), 10, None)
    book.renew("a", 10)
    assert [(le.run_id, le.live) for le in book.read()] == [("a", False), ("b", True)]


def test_only_the_runs_own_nodes_are_given_back(book: LeaseBook) -> None:
    book.take(lease("a", "0"), 10, None)
    book.take(lease("a", "1", node_index=1), 10, None)
    book.release("a", (1,))
    book.release("a-longer-name")
    assert [le.node_index for le in book.read()] == [0]
    assert book.renew("a", 10, (1,)) == 0


def test_the_last_lease_takes_its_folder_with_it(book: LeaseBook, tmp_path: Path) -> None:
    book.take(lease("a", "0"), 10, None)
    book.take(lease("b", "1"), 10, None)
    book.release("a")
    assert [le.run_id for le in book.read()] == ["b"]
    book.release("b")
    assert list(tmp_path.iterdir()) == []
    book.take(lease("c", "0"), 10, None)
    assert [le.run_id for le in book.read()] == ["c"]


def test_a_renewal_does_not_bring_a_released_lease_back(
    book: LeaseBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.take(lease("a", "0"), 10, None)
    read = LeaseBook._of

    def read_then_release(
        self: LeaseBook, run_id: str, nodes: tuple[int, ...] | None
    ) -> list[Lease]:
        found = read(self, run_id, nodes)
        monkeypatch.setattr(LeaseBook, "_of", read)
        book.release("a")
        return found

    monkeypatch.setattr(LeaseBook, "_of", read_then_release)
    book.renew("a", 10)
    assert book.read() == []


def take_and_release(folder: str, run_id: str) -> bool:
    book = LeaseBook(folder)
    for _ in range(40):
        book.take(lease(run_id, run_id), 10, None)
        book.renew(run_id, 10)
        if [le.run_id for le in book.read()].count(run_id) != 1:
            return False
        book.release(run_id)
    return True


def test_many_who_come_and_go_at_once_lose_no_lease(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        kept = pool.starmap(take_and_release, [(str(tmp_path / "le"), f"r{i}") for i in range(4)])
    assert kept == [True] * 4
    assert list(tmp_path.iterdir()) == []


def try_to_take(folder: str, run_id: str) -> bool:
    try:
        LeaseBook(folder).take(lease(run_id, "0"), 10, None)
    except HeldError:
        return False
    return True


def test_of_many_who_take_the_same_gpu_at_once_one_gets_it(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        got = pool.starmap(try_to_take, [(str(tmp_path / "le"), f"r{i}") for i in range(16)])
    assert sum(got) == 1


# -- files that are no leases ---------------------------------------------------------------------


@pytest.fixture
def alarm() -> Iterator[None]:
    """Ends a test that waits in the kernel."""

    def fail(signum: int, frame: object) -> None:
        raise AssertionError("it waits")

    usual = signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


EARLY = "a.!.lease"
"""Sorted before every lease of run ``a``."""


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("name", [EARLY, "a.1.lease", LOCK])
def test_a_pipe_is_no_lease_and_holds_nobody_up(name: str, book: LeaseBook, tmp_path: Path) -> None:
    book.take(lease("a", "0"), 10, None)
    (tmp_path / "leases" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "leases" / name)
    assert (book.seconds_left("a", 0) or 0) > 5
    assert book.seconds_left("a", 1) is None
    assert book.renew("a", 20) == 1
    book.take(lease("b", "1"), 10, None)
    assert [le.run_id for le in book.read()] == ["a", "b"]
    book.release("a")


def test_a_link_is_no_lease_and_nothing_is_done_to_what_it_names(
    book: LeaseBook, tmp_path: Path
) -> None:
    LeaseBook(str(tmp_path / "own")).take(lease("a", "7", node_index=1), -1, None)
    target = tmp_path / "own/a.1.lease"
    before = (target.read_bytes(), target.stat().st_mtime_ns)
    book.take(lease("a", "0"), 10, None)
    (tmp_path / "leases/a.1.lease").symlink_to(target)
    assert book.seconds_left("a", 1) is None
    assert book.renew("a", 20) == 1
    book.release("a", (1,))
    assert [le.node_index for le in book.read()] == [0]
    assert (target.read_bytes(), target.stat().st_mtime_ns) == before


def test_a_lease_is_written_through_no_link(book: LeaseBook, tmp_path: Path) -> None:
    book.take(lease("a", "0"), 10, None)
    target = tmp_path / "precious"
    target.write_text("own")
    (tmp_path / f"leases/b.0.{os.getpid()}.tmp").symlink_to(target)
    book.take(lease("b", "1"), 10, None)
    assert target.read_text() == "own"
    assert [le.run_id for le in book.read()] == ["a", "b"]


@pytest.mark.parametrize(
    "content",
    [
        "[" * 20_000,
        "7",
        lease("b").having(taken_at="then").to_json(),
        lease("b").having(taken_at=10**400).to_json(),
        lease("b").having(slots="many").to_json(),
        lease("b").having(slots=-8).to_json(),
        lease("b").having(gpus=[["0"]]).to_json(),
        lease("b").having(gpus=0).to_json(),
        lease("b").having(taken_at=1.0, owner="o" * (1 << 20)).to_json(),
    ],
    ids=["deep", "number", "time", "long time", "slots", "debts", "lists", "gpus", "large"],
)
def test_nonsense_is_no_lease_and_stops_nobody(
    content: str, book: LeaseBook, tmp_path: Path
) -> None:
    book.take(lease("a", "1"), 10, None)
    (tmp_path / "leases/b.0.lease").write_text(content)
    os.utime(tmp_path / "leases/b.0.lease", (4e9, 4e9))
    book.take(lease("c", "0", slots=0), 10, 1)
    assert [le.run_id for le in book.read()] == ["a", "c"]


# -- two people are two uids ----------------------------------------------------------------------

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")


@pytest.fixture
def everybodys(tmp_path: Path) -> Path:
    """A folder like /dev/shm, which another user can reach."""
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    shared = tmp_path / "shm"
    shared.mkdir()
    shared.chmod(0o1777)
    return shared / "leases"


def as_nobody(work: Callable[[], None], uid: int = NOBODY) -> None:
    """In a process of another user; what it raises, an assertion too, fails the test."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o077)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def hold_and_give_back(book: LeaseBook) -> None:
    """What one user does while ``root`` holds GPU 0."""
    with pytest.raises(HeldError) as error:
        book.take(lease("theirs", "0"), 10, None)
    assert [held.run_id for held in error.value.leases] == ["roots"]
    book.take(lease("theirs", "1"), 10, None)
    assert book.renew("theirs", 20) == 1
    assert (book.seconds_left("theirs", 0) or 0) > 15


@needs_root
def test_two_users_hold_what_each_has_taken(everybodys: Path) -> None:
    book = LeaseBook(str(everybodys))
    book.take(lease("roots", "0"), 10, None)
    as_nobody(lambda: hold_and_give_back(book))
    with pytest.raises(HeldError) as error:
        book.take(lease("more", "1"), 10, None)
    assert [held.run_id for held in error.value.leases] == ["theirs"]
    as_nobody(lambda: book.release("theirs"))
    assert [le.run_id for le in book.read()] == ["roots"]
    book.take(lease("more", "1"), 10, None)


@needs_root
def test_a_user_gives_back_no_lease_of_another(everybodys: Path) -> None:
    book = LeaseBook(str(everybodys))
    book.take(lease("roots", "0"), 10, None)
    as_nobody(lambda: book.release("roots"))
    assert [(le.run_id, le.live) for le in book.read()] == [("roots", True)]


@needs_root
def test_what_the_first_user_makes_is_everybodys(everybodys: Path) -> None:
    book = LeaseBook(str(everybodys))
    as_nobody(lambda: book.take(lease("theirs", "0"), 10, None))
    assert stat.S_IMODE(everybodys.stat().st_mode) == 0o1777
    book.take(lease("roots", "1"), 10, None)
    as_nobody(lambda: book.take(lease("more", "2"), 10, None))
    assert [le.run_id for le in book.read()] == ["more", "roots", "theirs"]


@needs_root
def test_a_user_takes_what_anothers_expired_lease_held(everybodys: Path) -> None:
    book = LeaseBook(str(everybodys))
    book.take(lease("roots", "0"), -1, None)
    as_nobody(lambda: book.take(lease("theirs", "0"), 10, None))
    book.renew("roots", 10)
    assert [(le.run_id, le.live) for le in book.read()] == [
        ("roots", False),
        ("theirs", True),
    ]


@needs_root
def test_the_last_user_leaves_no_folder_that_nobody_can_use(everybodys: Path) -> None:
    book = LeaseBook(str(everybodys))
    book.take(lease("roots", "0"), 10, None)
    as_nobody(lambda: book.take(lease("theirs", "1"), 10, None))
    book.release("roots")
    as_nobody(lambda: book.release("theirs"))
    as_nobody(lambda: book.take(lease("again", "0"), 10, None))
    assert [le.run_id for le in book.read()] == ["again"]


@needs_root
def test_one_who_dies_while_the_lock_is_made_shuts_nobody_out(everybodys: Path) -> None:
    book, chmod = LeaseBook(str(everybodys)), Path.chmod

    def die_at_the_lock(path: Path, mode: int) -> None:
        if path.name == LOCK:
            os._exit(0)
        chmod(path, mode)

    def take() -> None:
        Path.chmod = die_at_the_lock  # type: ignore[method-assign,assignment]
        book.take(lease("first", "0"), 10, None)

    as_nobody(take)
    as_nobody(lambda: book.take(lease("second", "1"), 10, None), uid=NOBODY - 1)
    assert "second" in [le.run_id for le in book.read()]


def forge(folder: Path, name: str, **fields: object) -> None:
    """Another user copies the lease of ``roots``, says that it is over, and changes ``fields``."""
    copy = folder / name
    shutil.copy(folder / "roots.0.lease", copy)
    copy.write_text(json.dumps({**json.loads(copy.read_text()), **fields}))
    os.utime(copy, (0, 0))


@needs_root
@pytest.mark.parametrize("name", ["roots.!.lease", "roots.00.lease", "roots.-1.lease"])
def test_a_copy_by_another_user_neither_ends_nor_changes_a_lease(
    name: str, everybodys: Path
) -> None:
    book = LeaseBook(str(everybodys))
    book.take(lease("roots", "0"), 10, None)
    own = everybodys / "roots.0.lease"
    before = own.read_bytes()
    as_nobody(lambda: forge(everybodys, name, gpus=[]))
    assert (book.seconds_left("roots", 0) or 0) > 5
    assert book.renew("roots", 20, (0,)) == 1
    assert book.renew("roots", 20) == 1
    assert (book.seconds_left("roots", 0) or 0) > 15
    assert own.read_bytes() == before
    with pytest.raises(HeldError):
        book.take(lease("more", "0"), 10, None)


@needs_root
def test_a_lease_that_another_user_writes_for_a_run_is_not_the_runs(everybodys: Path) -> None:
    book = LeaseBook(str(everybodys))
    book.take(lease("roots", "0"), 10, None)
    as_nobody(lambda: forge(everybodys, "roots.1.lease", node_index=1))
    assert book.seconds_left("roots", 1) is None
    assert book.renew("roots", 20) == 1
    assert [(le.node_index, le.live) for le in book.read()] == [(0, True), (1, False)]
    book.release("roots")
    assert [le.node_index for le in book.read()] == [1]
