"""However a script ends, its guard ends the same way; compared with the interpreter itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.agent.worker import guard
from launcher.agent.worker.heartbeat import create_heartbeat
from launcher.agent.worker_exit import read_end
from launcher.contract import protocol
from launcher.contract.ending import WorkerEnd
from tests.waiting import wait_until

ENDINGS = {
    "falls off its end": "print('done')",
    "sys.exit()": "import sys; sys.exit()",
    "sys.exit(0)": "import sys; sys.exit(0)",
    "sys.exit(main())": "import sys\ndef main(): pass\nsys.exit(main())",
    "sys.exit(3)": "import sys; sys.exit(3)",
    "sys.exit(True)": "import sys; sys.exit(True)",
    "sys.exit of a text": "import sys; sys.exit('bad input')",
    "sys.exit(256)": "import sys; sys.exit(256)",
    "os._exit(0)": "import os; os._exit(0)",
    "os._exit(3)": "import os; os._exit(3)",
    "exit of the C library": "import ctypes; ctypes.CDLL(None).exit(4)",
    "an exception": "def f():\n    raise ValueError('no data')\nf()",
    "a chain of exceptions": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    open('/missing')",
    "a syntax error": "def f(:\n    pass",
    "a keyboard interrupt": "raise KeyboardInterrupt",
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "SIGTERM to itself": "import os, time; os.kill(os.getpid(), 15); time.sleep(60)",
    "an abort": "import os; os.abort()",
    "an exit in atexit": "import atexit, os; atexit.register(os._exit, 5)",
    "output in atexit": "import atexit; atexit.register(print, 'bye')",
    "a thread that is waited for": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()"
    ),
    "a process of multiprocessing": (
        "import multiprocessing as mp\n"
        "def f(q): q.put((mp.current_process().name, mp.parent_process().name))\n"
        "if __name__ == '__main__':\n"
        "    print(mp.current_process().name, mp.parent_process())\n"
        "    mp.set_start_method('spawn')\n"
        "    q = mp.Queue(); p = mp.Process(target=f, args=(q,)); p.start()\n"
        "    print(q.get()); p.join()\n"
    ),
    "bytes that are no UTF-8": "import sys; sys.stdout.buffer.write(b'\\xff\\x00\\r\\n\\xfe')",
    "no newline at its end": "print('half', end='')",
    "an excepthook": "import sys; sys.excepthook = lambda *e: print('hook', e[0])\n1 / 0",
}
"""Scripts, by how they end."""


class Guarded:
    """A worker started as torch's agent would, without torch."""

    def __init__(self, folder: Path, archive: Path) -> None:
        self.folder, self.archive = folder, archive
        self.rank_dir = folder / "rank-0"
        self.rank_dir.mkdir()
        create_heartbeat(folder / "heartbeat")
        self.plain = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
        self.env = {
            **self.plain,
            "RANK": "0",
            "LOCAL_RANK": "0",
            protocol.NODE_ATTEMPT: "0",
            "TORCHELASTIC_ERROR_FILE": str(self.rank_dir / protocol.ERROR_FILE),
            protocol.NODE_DIR: str(folder),
            protocol.HEARTBEAT: str(folder / "heartbeat"),
            protocol.ASKED_FILE: str(folder / "asked"),
            guard.WORKER_DIR: str(self.rank_dir),
            guard.EXIT_GRACE_S: "1",
            guard.PARENT_PID: str(os.getpid()),
        }

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-u", str(self.archive), "worker", *argv],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *argv: str) -> tuple[int, bytes, bytes]:
        process = self.start(*argv)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def run_plain(self, *argv: str) -> tuple[int, bytes, bytes]:
        """The same by the interpreter alone, which is what torchrun starts."""
        done = subprocess.run(
            [sys.executable, "-u", *argv],
            cwd=self.folder,
            env=self.plain,
            capture_output=True,
            check=False,
            timeout=60,
            start_new_session=True,
        )
        return done.returncode, done.stdout, done.stderr

    def end(self) -> WorkerEnd:
        found = read_end(self.rank_dir / protocol.EXIT_FILE, self.rank_dir)
        assert found is not None
        return found


@pytest.fixture
def guarded(tmp_path: Path, archive: Path) -> Guarded:
    return Guarded(tmp_path, archive)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_guarded_script_ends_and_speaks_as_under_the_interpreter(guarded, ending):
    (guarded.folder / "script.py").write_text(ENDINGS[ending])
    plain = guarded.run_plain("script.py")
    assert guarded.run("script.py") == plain
    assert guarded.end().exit_code == plain[0]


@pytest.mark.parametrize(
    "argv",
    [
        ("script.py", "--x", "1"),
        ("./script.py",),
        ("sub/script.py",),
        ("link.py",),
        ("-m", "package", "a"),
        ("-m", "package.part", "a"),
        ("-m", "missing_module"),
        ("package",),
        ("missing.py",),
    ],
)
def test_what_a_script_sees_of_its_start_is_what_the_interpreter_shows(guarded, argv):
    seen = (
        "import sys, os, inspect, signal, gc, threading\n"
        "class Own: pass\n"
        "print(sys.argv, sys.path[0], len(sys.path), __name__, __file__, __package__, __doc__)\n"
        "print(__spec__ and __spec__.name, type(__loader__).__name__, sorted(globals()))\n"
        "print(sys.orig_argv, Own.__module__, sys.modules['__main__'].__dict__ is globals())\n"
        "print([n for n in sys.modules if n == 'launcher'], os.getsid(0) == os.getpid())\n"
        "print(signal.getsignal(2), signal.getsignal(15), signal.pthread_sigmask(0, ()))\n"
        "print(sys.stdout.encoding, sys.stdout.errors, sys.stdout.write_through, sys.stdout.mode)\n"
        "print(sys.stderr.encoding, sys.stderr.errors, sys.stdout.name)\n"
        "print(threading.current_thread() is threading.main_thread(), os.listdir('.')[:0])\n"
    )
    for name in ("script.py", "sub/script.py", "package/__main__.py", "package/part.py"):
        path = guarded.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(seen)
    (guarded.folder / "package/__init__.py").touch()
    (guarded.folder / "link.py").symlink_to(guarded.folder / "sub/script.py")
    code, out, err = guarded.run(*argv)
    plain_code, plain_out, plain_err = guarded.run_plain(*argv)
    assert out.decode().splitlines() == plain_out.decode().splitlines()
    assert (code, err) == (plain_code, plain_err)


def test_a_script_may_have_folders_named_as_the_launcher_s(guarded):
    for name in ("launcher", "train", "agent"):
        (guarded.folder / name).mkdir()
        (guarded.folder / name / "__init__.py").write_text(f"print('the user has {name}')")
    (guarded.folder / "script.py").write_text("import launcher, train, agent")
    _, out, err = guarded.run("script.py")
    assert out.decode().splitlines() == [
        f"the user has {n}" for n in ("launcher", "train", "agent")
    ]
    assert err == b""


def test_a_script_sees_nothing_of_the_archive_nor_of_the_agent_s_variables(guarded):
    (guarded.folder / "script.py").write_text(
        "import sys, os\n"
        "print([p for p in sys.path if p.endswith('agent.pyz')])\n"
        "print([type(f).__name__ for f in sys.meta_path if 'launcher' in f.__module__])\n"
        f"print([n for n in os.environ if n in {guard.PRIVATE_VARIABLES!r}])"
    )
    assert guarded.run("script.py")[1].decode().splitlines() == [
        "[]",
        "['_AfterImport', '_AfterImport']",  # which wait for torch, and leave with it
        "[]",
    ]


def test_what_a_script_leaves_in_unclosed_files_is_written(guarded):
    (guarded.folder / "script.py").write_text("f = open('left-open', 'w'); f.write('text')")
    guarded.run("script.py")
    assert (guarded.folder / "left-open").read_text() == "text"


def test_an_uncaught_exception_is_told_in_error_json_as_torch_would(guarded):
    (guarded.folder / "script.py").write_text("raise ValueError('no data')")
    guarded.run("script.py")
    message = json.loads((guarded.rank_dir / protocol.ERROR_FILE).read_text())["message"]
    assert message["message"] == "ValueError: no data"
    assert "script.py" in message["extraInfo"]["py_callstack"]
    assert "agent/worker" not in message["extraInfo"]["py_callstack"]
    assert int(message["extraInfo"]["timestamp"]) > 0


GRANDCHILD = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("grandchild", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists("grandchild") or not open("grandchild").read():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("ending", ["", "os._exit(3)", "time.sleep(600)"])
def test_a_grandchild_that_ignores_sigterm_ends_with_its_script(guarded, ending):
    (guarded.folder / "script.py").write_text(GRANDCHILD + ending)
    process = guarded.start("script.py")
    grandchild = guarded.folder / "grandchild"
    wait_until(lambda: grandchild.exists() and grandchild.read_text())
    if "sleep" in ending:
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert not Path(f"/proc/{grandchild.read_text()}").exists()


def test_sigterm_without_a_stop_request_does_not_wait_for_a_slow_handler(guarded):
    (guarded.folder / "script.py").write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('flag set'))\n"
        "open('up', 'w').close()\n"
        "while True: time.sleep(1)\n"
    )
    process = guarded.start("script.py")
    wait_until((guarded.folder / "up").exists)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (-signal.SIGKILL, b"flag set\n")
    assert guarded.end().cause == "terminated"


def test_a_script_that_had_ended_by_itself_before_it_was_asked_is_told_by_its_own_code(guarded):
    # As Horovod's shutdown does: at its end it waits for the other ranks.
    (guarded.folder / "script.py").write_text(
        "import atexit, sys, time\natexit.register(time.sleep, 60)\nsys.exit(3)\n"
    )
    process = guarded.start("script.py")
    ended = guarded.rank_dir / protocol.ENDED_FILE
    wait_until(lambda: ended.exists() and ended.read_text())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    end = guarded.end()
    assert (end.exit_code, end.cause) == (3, "script-error")
    assert not ended.exists()


def test_the_guard_passes_both_signals_for_scripts_on(guarded):
    (guarded.folder / "script.py").write_text(
        "import signal, time\n"
        "came = []\n"
        "for each in (signal.SIGUSR1, signal.SIGUSR2):\n"
        "    signal.signal(each, lambda signum, _: came.append(signum))\n"
        "open('up', 'w').close()\n"
        "while len(came) < 2: time.sleep(0.01)\n"
        "print(sorted(came))\n"
    )
    process = guarded.start("script.py")
    wait_until((guarded.folder / "up").exists)
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(signum)
    out, _ = process.communicate(timeout=30)
    assert out.decode() == f"{[int(signal.SIGUSR1), int(signal.SIGUSR2)]}\n"


def test_a_guard_whose_agent_has_gone_ends_its_script(guarded):
    (guarded.folder / "script.py").write_text("print('never')")
    guarded.env[guard.PARENT_PID] = "1"
    code, out, _ = guarded.run("script.py")
    assert (code, out) == (128 + signal.SIGKILL, b"")
