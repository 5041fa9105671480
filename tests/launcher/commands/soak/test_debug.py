"""``run --debug`` on this machine, in a terminal, and by an editor's protocol."""

import json
import socket
from typing import Any

import pytest

from tests.debugged import STOPS, Terminal
from tests.launcher.commands.claims.test_debug import ALONE, JOB
from tests.waiting import wait_until


def test_ctrl_c_at_the_prompt_stops_the_run(launcher):
    launcher.write("breakpoint()\n", JOB)
    terminal = Terminal(launcher, "run", "job.yaml", *ALONE)
    terminal.wait("(Pdb) ")
    terminal.press("\x03")
    assert terminal.finish() == 130, terminal.text


class Editor:
    """The few words of the Debug Adapter Protocol that set a breakpoint and read a variable."""

    def __init__(self, port: int) -> None:
        self._talk = socket.create_connection(("127.0.0.1", port), 60)
        self._stream = self._talk.makefile("rb")
        self._number = 0
        self._heard: list[dict[str, Any]] = []

    def ask(self, command: str, **arguments: Any) -> int:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command}
        body = json.dumps(message | {"arguments": arguments}).encode()
        self._talk.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self._number

    def wait(self, **wanted: Any) -> dict[str, Any]:
        while True:
            size = 0
            while line := self._stream.readline().strip():
                size = int(line.partition(b":")[2])
            assert size, f"the connection has ended after {self._heard}"
            found: dict[str, Any] = json.loads(self._stream.read(size))
            self._heard.append(found)
            if wanted.items() <= found.items():
                return found

    def close(self) -> None:
        self._talk.close()


def test_an_editor_debugs_a_rank_by_a_port_of_this_machine(launcher):
    pytest.importorskip("debugpy")
    launcher.write(STOPS.replace("for left in (1, 0):\n    breakpoint()\n", ""), JOB)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = launcher.start(
        *("run", "job.yaml", "--on", "local", "--debug", "1", "--debug-port", str(port))
    )
    try:
        latest = launcher.folder / "runs/latest"
        wait_until(lambda: list(latest.glob("nodes/1/0/debugger")))
        editor = Editor(port)
        editor.ask("initialize", adapterID="test")
        editor.wait(type="response", command="initialize", success=True)
        editor.ask("attach", justMyCode=True)
        editor.wait(type="event", event="initialized")
        editor.ask("configurationDone")
        stopped = editor.wait(type="event", event="stopped")["body"]
        editor.ask("stackTrace", threadId=stopped["threadId"])
        (frame, *_) = editor.wait(type="response", command="stackTrace")["body"]["stackFrames"]
        editor.ask("evaluate", expression="int(secret)", frameId=frame["id"], context="repl")
        assert editor.wait(type="response", command="evaluate")["body"]["result"] == "41"
        editor.ask("continue", threadId=stopped["threadId"])
        out, err = process.communicate(timeout=120)
        editor.close()
    finally:
        process.kill()
    assert process.returncode == 0, err.decode()
    assert out.decode().count("sum 81") == 2


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        (["--debug", "0"], "--debug needs a terminal", "--debug 0 --debug-port 5678"),
        (["--debug", "0", "--debug", "1"], "--debug 0 --debug 1: one rank at a time", "--debug 0"),
        (["--debug", "0,1"], "'0,1' is no whole number", "--help"),
        (["--debug-port", "5678"], "5678 needs --debug RANK", "--debug 0 --debug-port 5678"),
        (["--debug", "2", "--debug-port", "0"], "--debug 2: the run has rank 0 to 1", "--debug 0"),
        (["--debug", "0", "--detach"], "--debug needs this process", "one of both"),
        (["--debug", "0", "--debug-port", "0", "--set", "engine=torchrun"], "plain torchrun",
         "leave out engine"),
    ],
)  # fmt: skip
def test_what_cannot_be_debugged_is_refused(launcher, options, what, fix):
    launcher.write("breakpoint()\n", JOB)
    told = launcher.fails(2, "run", "job.yaml", "--on", "local", *options)
    assert what in told, told
    assert fix in told, told
    assert not launcher.run_ids()
