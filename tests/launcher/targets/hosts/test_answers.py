"""What a host answers in a conversation, and for how long it waits."""

import io
import os
from argparse import Namespace
from contextlib import suppress
from typing import Any

import pytest

from launcher.contract.process_stat import name_machine
from launcher.targets.hosts.program import __main__ as program
from launcher.targets.hosts.program.messages import (
    MAGIC,
    Answered,
    FilePart,
    FunctionCall,
    Lease,
    NodesSeen,
    Refusal,
    read_frame,
    write_frame,
)


@pytest.fixture
def converse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Answers to requests, each with its bytes, and the limits that were set meanwhile."""

    def converse(*asked: tuple[Any, bytes], then: bytes = b"") -> tuple[list[Any], list[float]]:
        wire, out, alarms = io.BytesIO(), io.BytesIO(), list[float]()
        for message, blob in asked:
            write_frame(wire, message, blob)
        there, here = os.pipe()
        os.write(here, wire.getvalue() + then)
        os.close(here)
        with os.fdopen(there, "rb") as stdin:
            monkeypatch.setattr(program.sys, "stdin", Namespace(buffer=stdin))
            monkeypatch.setattr(program.sys, "stdout", Namespace(buffer=out))
            monkeypatch.setattr(program, "alarm", alarms.append)
            monkeypatch.setattr("signal.alarm", alarms.append)
            with suppress(SystemExit):
                assert program.main(["program"]) == 0
        out.seek(0)
        assert out.read(len(MAGIC)) == MAGIC
        answers = []
        while frame := read_frame(out):
            answers.append(frame[0])
        return answers, alarms

    return converse


def call(
    function: str, *, blob: str = "", limit_s: float = 5.0, machine: str = "", **given: Any
) -> Any:
    return FunctionCall(
        function=function, arguments=given, blob=blob, limit_s=limit_s, machine=machine
    )


def test_each_request_is_answered_or_refused_and_the_next_one_is_waited_for(converse, tmp_path):
    state, own = str(tmp_path), name_machine()
    here = {"state_dir": state, "hash": "h"}
    answers, alarms = converse(
        (call("code_store.has_code", **here), b""),
        (call("code_store.store_code", blob="archive", limit_s=7.9, **here), b"bytes"),
        (call("code_store.has_code", machine=own, **here), b""),
        (call("code_store.has_code", machine="another", **here), b""),
        (call("code_store.store_code", blob="archive", state_dir="/proc/x", hash="h"), b"bytes"),
        (call("facts.run_probe", blob="program", python="/nowhere", arguments=[], env={},
              checkpoint_dir=state, wait_s=1.0), b""),
        (call("requests.ask_launcher", run_dir=state, name="stop-run", text=""), b""),
        (call("watch.send_run", run_dir=state, node=0, have={}, beside_code_bytes=0), b""),
        (call("watch.watch_run", run_dir=state, node=0, have={}, follows=False), b""),
        (call("code_store.has_code", **here), b"the watch has ended with the launcher's line"),
    )  # fmt: skip
    fix = "correct the address that its name leads to: ~/.ssh/config, /etc/hosts"
    another = f"it is another machine ({own}) than the run's (another)"
    assert [one for one in answers if not isinstance(one, FilePart | NodesSeen)] == [
        Answered(value=False),
        Answered(value=True),
        Answered(value=True),
        Refusal(error=another, fix=fix),
        Refusal(error="/proc/x: No such file or directory"),
        Refusal(error="/nowhere does not start, or takes longer than 1 s"),
        Answered(value=False),
        Answered(value=[{}, False]),
    ]
    assert alarms[:4] == [3600, 65, 3600, 67]
    assert alarms[14:19] == [3600, 65, 3600, 65, 30]
    assert (tmp_path / "code/h.tar.gz").read_bytes() == b"bytes"


def test_a_conversation_ends_with_what_is_no_message(converse):
    assert converse((call("session.read_clock"), b""), then=b"hello\n")[1] == [3600, 65, 3600]
    assert converse(then=b"hello\n") == ([], [3600])


def test_what_a_conversation_holds_ends_with_it(converse, tmp_path):
    folder = str(tmp_path / "not/there")
    lease = Lease(run_id="r", node_index=0, owner="me", gpus=["0"], slots=0)
    (token, taken), _ = converse(
        (call("session.leave_token", folder=folder, name="token"), b""),
        (
            call(
                "session.take_lease",
                lease=lease,
                lease_dir=f"{tmp_path}/leases",
                run_dir=f"{tmp_path}/run",
                slots_limit=None,
                containers=False,
            ),
            b"",
        ),
    )
    assert (token, taken) == (Answered(value=None), Answered(value=[]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
