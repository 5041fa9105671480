"""Conversations with hosts, by a stand-in for the ssh client that runs the host's part here."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.contract import protocol
from launcher.contract.errors import TargetError
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.program import leases
from launcher.targets.hosts.program.messages import Lease, Refusal, write_frame
from launcher.targets.hosts.program.session import HELD_LIMIT_S, read_clock, take_lease
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh.client import Ssh, joined
from launcher.targets.hosts.ssh.session import Session
from launcher.targets.subprocesses.conversation import Conversation


@pytest.fixture
def hosts(tmp_path: Path) -> list[Host]:
    return [Host(name=name, state_dir=str(tmp_path / name)) for name in ("gpu1", "gpu2")]


def answers(session: Session) -> bool:
    return session.call(read_clock) > 0


def test_every_host_is_talked_to_or_it_is_said_why_not(ssh_here, hosts):
    client = "case \"$*\" in *gpu1*) echo 'Permission denied (publickey).' >&2; exit 255;; esac"
    ssh = ssh_here(client)
    with pytest.raises(TargetError, match="gpu1"), ssh.sessions(hosts):
        pass
    away: dict[str, TargetError] = {}
    with ssh.sessions(hosts, away=away) as opened:
        assert list(opened) == ["gpu2"]
        assert answers(opened["gpu2"])
    assert list(away) == ["gpu1"]


def test_what_a_shell_prints_in_place_of_an_answer_is_told(ssh_here, hosts):
    ssh = ssh_here("echo This account is not available.; read -r _; exit 1")
    with pytest.raises(TargetError, match=r"failed: This account is not available\."):
        ssh.open(hosts[0])


def test_a_client_that_talks_much_is_never_in_its_own_way(ssh_here, hosts):
    talk = "yes debug1: channel 0: rcvd adjust | head -n 100000 >&2"
    with ssh_here(talk).open(hosts[0]) as session:
        assert answers(session)


def test_a_folder_of_log_ins_that_is_not_there_is_not_needed(ssh_here, monkeypatch, hosts):
    ssh = ssh_here()
    # As after su, which leaves the variable as it was.
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    with ssh.open(hosts[0]) as session:
        assert answers(session)


OLD_PYTHON = """#!/bin/sh
exec {python} -S -c "import sys; sys.version_info = (3, 6, 9); $3"
"""


def test_a_host_whose_python_is_too_old_says_so_in_one_line(ssh, hosts, tmp_path):
    program = tmp_path / "bin/python3"
    program.write_text(OLD_PYTHON.format(python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    with pytest.raises(TargetError) as error:
        ssh.open(hosts[0])
    assert error.value.what == "gpu1: python3 is 3.6 there, 3.9 is needed"
    assert "first on PATH" in error.value.hint


def test_a_program_that_does_not_fit_on_a_host_leaves_nothing_of_itself(tmp_path, ssh_here, hosts):
    with pytest.raises(TargetError, match="File too large"):
        # As a full disk, for files above 4 kB.
        ssh_here("ulimit -f 8").open(hosts[0])
    assert list((tmp_path / "gpu1/bin").iterdir()) == []


def test_the_client_asks_for_no_password_in_a_window_either(ssh_here, hosts):
    client = 'test "$SSH_ASKPASS_REQUIRE" = never || exit 9'
    with ssh_here(client).open(hosts[0]) as session:
        assert answers(session)


CONFIG = """Host *
  RemoteCommand tmux attach
  RequestTTY force
  LocalForward 8888 localhost:8888
  RemoteForward 9999 localhost:9
  DynamicForward 1080
"""


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the ssh client")
def test_what_people_have_for_their_own_log_ins_does_not_reach_a_session(tmp_path):
    config = tmp_path / "config"
    config.write_text(CONFIG)
    argv = Ssh(Inventory(hosts=(), ssh_config=str(config))).argv(Host(name="gpu1"))
    done = subprocess.run([argv[0], "-G", *argv[1:], "true"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    settings = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert settings["hostname"] == "gpu1"
    assert settings["requesttty"] == "false"
    assert settings["batchmode"] == "yes"
    assert not {"remotecommand", "localforward", "remoteforward", "dynamicforward"} & set(settings)


def test_a_conversation_may_be_ended_by_several_threads_at_once():
    for _ in range(20):
        talk = Conversation(("sh", "-c", "echo why >&2; cat"))
        talk.stdin.write(b"x")
        with ThreadPoolExecutor(8) as pool:
            ended = list(pool.map(lambda _, talk=talk: talk.end(), range(8)))
        assert sorted(ended) == [(0, "")] * 7 + [(0, "why\n")]


def test_a_lease_is_held_as_long_as_the_launcher_is_heard(ssh, hosts, tmp_path):
    lease = Lease(run_id="r", node_index=0, owner="me", gpus=["0"], slots=0)
    lease_dir = str(tmp_path / "leases")
    with ssh.open(hosts[0]) as session:
        in_the_way = session.call(
            take_lease,
            lease=lease,
            lease_dir=lease_dir,
            run_dir=str(tmp_path / "runs/r"),
            slots_limit=None,
            containers=False,
        )
        assert not in_the_way
        assert [held.run_id for held in leases.read_leases(lease_dir)] == ["r"]
        assert answers(session)
        # As after a loss of power: the connection stays, and nothing comes.
        long_ago_ns = time.monotonic_ns() - int(HELD_LIMIT_S * 1e9)
        os.utime(
            tmp_path / "runs/r/nodes/0" / protocol.FOLLOWED_FILE, ns=(long_ago_ns, long_ago_ns)
        )
        with pytest.raises(TargetError):
            session.receive(limit_s=20.0)
        assert leases.read_leases(lease_dir) == []


# -- what is said of a session --------------------------------------------------------------------

OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ControlMaster=auto",
    "ControlPersist=60",
    "ControlPath={0}/launcher-ssh-{1}/%C",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
)


def test_the_client_gets_all_that_is_known_of_a_host(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"/tmp/{'x' * 40}")
    host = Host(name="gpu1", user="ml", port=2222, identity="/key")
    for accept_new, more in ((False, ()), (True, ("StrictHostKeyChecking=accept-new",))):
        options = [one.format("/tmp", os.getuid()) for one in (*OPTIONS, *more)]
        words = [word for option in options for word in ("-o", option)]
        way = ["-F", "my.cfg", "-p", "2222", "-l", "ml", "-i", "/key", "--", "gpu1"]
        ssh = Ssh(Inventory(hosts=(), ssh_config="my.cfg", accept_new=accept_new))
        assert ssh.argv(host) == ("ssh", "-T", *words, *way)
        assert ssh.argv(host, terminal=True) == ("ssh", "-t", *words, *way)


@pytest.mark.parametrize(
    ("refusal", "hint"),
    [
        (Refusal(error="no room", fix="wait"), "wait"),
        (Refusal(error="no room"), "correct it there (ssh gpu1), then the same command"),
        (
            Refusal(error="/x: No space left on device"),
            "make room there (ssh gpu1), then the same command",
        ),
    ],
)
def test_a_refusal_names_the_host_and_a_fix(refusal, hint):
    # What is sent comes back.
    with Session(Host(name="gpu1"), ("cat",), "", "ssh gpu1") as session:
        write_frame(session._talk.stdin, refusal)
        with pytest.raises(TargetError) as error:
            session.receive()
    assert (error.value.what, error.value.hint) == (f"gpu1: {refusal.error}", hint)


def test_a_client_that_says_nothing_in_time_or_is_not_there_is_told(monkeypatch):
    silent = Session(Host(name="gpu1"), ("sleep", "60"), "", "ssh gpu1")
    with pytest.raises(TargetError, match=r"^gpu1: it does not answer \(timed out\)"):
        silent.call_within(0.1, read_clock)
    with pytest.raises(TargetError, match=r"^gpu1: "):
        Session(Host(name="gpu1"), ("echo", "no message")).receive()
    for program, fix in (("ssh", "install OpenSSH's client"), ("kubectl", "install kubectl")):
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(TargetError) as error:
            Session(Host(name="gpu1"), (program,))
        told = (f"there is no {program} on this machine", fix)
        assert (error.value.what, error.value.hint) == told


@pytest.mark.parametrize(("is_shared", "tried"), [("0", 2), ("255", 1)])
def test_a_dead_connection_that_is_shared_is_tried_once_more(
    ssh_here, hosts, tmp_path, is_shared, tried
):
    log = tmp_path / "log"
    stop = f'[ "$1 $2 $3" = "-O stop -T" ] && exit {is_shared}'
    ssh = ssh_here(f"{stop}\necho x >>{log}; [ $(wc -l <{log}) -gt 1 ] || exit 255")
    if tried == 2:
        with ssh.open(hosts[0]) as session:
            assert answers(session)
    else:
        with pytest.raises(TargetError, match="gpu1"):
            ssh.open(hosts[0])
    assert log.read_text() == "x\n" * tried


def test_hosts_that_failed_are_one_error(ssh):
    one = TargetError("gpu1: away", "is it on?")
    assert joined([one]) is one
    many = [TargetError(f"gpu{n}: away", "" if n < 3 else f"look {n}") for n in range(1, 11)]
    told = joined(many)
    assert told.what == (
        "10 hosts failed:\n" + "".join(f"  gpu{n}: away\n" for n in range(1, 9)) + "  and 2 more"
    )
    assert told.hint == "look 3"
    assert joined(many[:8]).what.endswith("\n  gpu8: away")

    def work(n: int) -> int:
        if n:
            raise [ValueError("a fault"), one][n - 1]
        return n

    assert ssh.each(work, [0, 0]) == [0, 0]
    for items, error in (([0, 2], TargetError), ([2, 1], ValueError)):
        with pytest.raises(error):
            ssh.each(work, items)
