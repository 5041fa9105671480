"""Runs a script as ``python -u script`` or ``python -u -m module`` would, in a forked child.

Called by the guard, in the child; never returns. Standard library only. What a script can
observe is compared with plain torchrun by tests: arguments, search path, streams, signals,
random state, multiprocessing, ways to end.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import importlib.machinery
import io
import json
import os
import runpy
import signal
import sys
import time
import traceback
import types
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from launcher.agent import processes
from launcher.agent.atomic_write import write_atomically
from launcher.agent.worker import groups, recorder
from launcher.agent.worker.after_import import after_import
from launcher.agent.worker.heartbeat import HeartbeatWriter, beat_after_steps
from launcher.contract import protocol
from launcher.contract.errors import ExitCode
from launcher.contract.reports.look import FAILED_COLLECTIVES

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

Prepare = Callable[[], None]

STACKS_SIGNAL = signal.SIGRTMAX - 2
"""Asks for the stacks. SIGUSR1 and SIGUSR2 are left to scripts."""

_kept_open: list[object] = []


def run(
    argv: tuple[str, ...], sys_path: tuple[str, ...], folder: Path, prepare: Prepare
) -> NoReturn:
    """Becomes the script's process, runs it, and ends as an interpreter does.

    ``argv`` follows ``python`` on the command line; ``sys_path`` follows ``sys.path[0]``;
    ``folder`` is the worker's log folder.
    """
    try:
        os.setsid()
        _reset_signals()
        prepare()
        _open_streams()
        _show_crashes()
        _open_stacks()
        atexit.register(groups.let_go)
        open_debugger = _plan_debugger()
        _start_heartbeat()
    except BaseException:
        # Must not return into the frames that forked this process.
        with contextlib.suppress(OSError):
            traceback.print_exc()
        os._exit(int(ExitCode.AGENT_FAILED))
    try:
        open_debugger()
        _execute(argv, sys_path)
        code = 0
    except SystemExit as ending:
        code = _exit_code(ending)
    except KeyboardInterrupt as error:
        _show(error)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        code = 130
    except BaseException as error:
        _write_error_file(error)
        _show(error)
        with contextlib.suppress(BaseException):
            recorder.write_trace(folder / FAILED_COLLECTIVES)
        code = 1
    with contextlib.suppress(OSError):
        (folder / protocol.ENDED_FILE).write_text(str(code & 0xFF))
    # Ends as the interpreter does: threads, atexit, open files. os._exit would lose buffered
    # output, and unwinding would run the frames of multiprocessing.
    finish = ctypes.pythonapi.Py_Exit
    finish.argtypes, finish.restype = [ctypes.c_int], None
    finish(code & 0xFF)
    os._exit(code & 0xFF)


# -- the script ------------------------------------------------------------------------------


def _execute(argv: tuple[str, ...], sys_path: tuple[str, ...]) -> None:
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = module
    sys.orig_argv[:] = [sys.executable, "-u", *argv]
    sys.path[:] = sys_path
    if argv[0] == "-m":
        sys.argv[:] = ["-m", *argv[2:]]
        _put_first(str(Path.cwd()))
        _run_as_main(argv[1])
        return
    sys.argv[:] = argv
    path = argv[0]
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        sys.path.insert(0, os.path.abspath(path))
        _run_as_main("__main__", False)
        return
    _put_first(os.path.dirname(os.path.realpath(path)))
    _run_file(module, path)


def _put_first(folder: str) -> None:
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


def _run_as_main(name: str, alter_argv: bool = True) -> None:
    # What the interpreter calls for -m. With run_module, the script's module would be gone before
    # its atexit handlers run.
    vars(runpy)["_run_module_as_main"](name, alter_argv)


def _run_file(module: types.ModuleType, path: str) -> None:
    full = os.path.join(os.getcwd(), path)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        _print_error(
            f"{sys.executable}: can't open file {full!r}: [Errno {error.errno}] {error.strerror}\n"
        )
        raise SystemExit(2) from None
    loader = importlib.machinery.SourceFileLoader("__main__", full)
    module.__dict__.update(__file__=full, __cached__=None, __loader__=loader)
    exec(compile(source, full, "exec", dont_inherit=True), module.__dict__)


def _exit_code(ending: SystemExit) -> int:
    if ending.code is None:
        return 0
    if isinstance(ending.code, int):
        return ending.code
    _print_error(f"{ending.code}\n")
    return 1


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(text)


def _show(error: BaseException) -> None:
    """Prints an uncaught exception as the interpreter does."""
    error.__traceback__ = _own_part(error.__traceback__)
    with contextlib.suppress(BaseException):
        sys.excepthook(type(error), error, error.__traceback__)


def _write_error_file(error: BaseException) -> None:
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not file or (os.path.exists(file) and os.path.getsize(file)):
        # A script that uses torch's own @record has written it already.
        return
    error.__traceback__ = _own_part(error.__traceback__)
    callstack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    text, at = f"{type(error).__name__}: {_words_of(error)}", str(int(time.time()))
    message = {"message": text, "extraInfo": {"py_callstack": callstack, "timestamp": at}}
    with contextlib.suppress(OSError):
        write_atomically(Path(file), json.dumps({"message": message}))


def _words_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        # What the interpreter prints then.
        return "<exception str() failed>"


def _own_part(tb: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this module."""
    while tb is not None and tb.tb_frame.f_code.co_filename == _own_part.__code__.co_filename:
        tb = tb.tb_next
    return tb


# -- the process -----------------------------------------------------------------------------


def _reset_signals() -> None:
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _open_streams() -> None:
    """stdout and stderr as ``python -u`` makes them: nothing waits in a buffer."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        raw = open(fd, "wb", buffering=0, closefd=False)  # noqa: SIM115
        vars(raw)["name"] = f"<{name}>"
        errors = "backslashreplace" if name == "stderr" else old.errors
        stream = io.TextIOWrapper(
            raw,
            encoding=old.encoding,
            errors=errors,
            line_buffering=os.isatty(fd),
            write_through=True,
        )
        vars(stream)["mode"] = "w"
        _kept_open.append(old)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _show_crashes() -> None:
    """Prints the Python stack of a crash if the interpreter was told to do so."""
    # torch switches it on in its forks, and a forked worker may have other variables than its
    # interpreter was started with.
    if os.environ.get("PYTHONFAULTHANDLER") or sys.flags.dev_mode:
        faulthandler.enable(file=2)
    else:
        faulthandler.disable()


def stacks_file(heartbeat: Path) -> Path:
    """Where a worker's faulthandler writes, beside its heartbeat."""
    return heartbeat.with_name(f"stacks-{heartbeat.name}")


def _open_stacks() -> None:
    """Has Python stacks written on demand, even while a thread is stuck in C, and at a crash."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        file = stacks_file(Path(os.environ[protocol.HEARTBEAT])).open("w")
        _kept_open.append(file)
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
        if not faulthandler.is_enabled():
            faulthandler.enable(file=file)  # for ``why``, and not in what the script prints


def _start_heartbeat() -> None:
    with contextlib.suppress(OSError, KeyError):
        path = Path(os.environ[protocol.HEARTBEAT])
        beat_after_steps(HeartbeatWriter(path))
        after_import(recorder.GROUPS, lambda module: recorder.answer_from_first_group(module, path))


def _plan_debugger() -> Prepare:
    """Returns what opens this worker's debugger. Call it before the recorder hooks groups too."""
    if not (kind := os.environ.pop(protocol.DEBUGGER, "")):
        return lambda: None
    # Imported here, so that a worker without a debugger does not import pdb.
    from launcher.agent.worker import debugger

    after_import(recorder.GROUPS, debugger.let_wait)
    return lambda: debugger.open_debugger(kind)


# -- only where forked from the warm process ---------------------------------------------------


def leave_multiprocessing(kept_fds: Collection[int], stdin_fd: int, main: BaseProcess) -> None:
    """Makes this fork of the warm process look like a main process to the script.

    ``main`` is the object by which multiprocessing knew the warm process itself.
    """
    from multiprocessing import forkserver, process, resource_tracker, set_start_method

    os.dup2(stdin_fd, 0)
    processes.close_all_but(kept_fds)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    # The fork server's client has given it the name of a child.
    main.name = "MainProcess"
    vars(process).update(_current_process=main, _parent_process=None)
    vars(process)["_children"].clear()
    set_start_method(None, force=True)
    _forget(vars(resource_tracker)["_resource_tracker"], _fd=None, _pid=None)
    _forget(
        vars(forkserver)["_forkserver"],
        _forkserver_address=None,
        _forkserver_alive_fd=None,
        _forkserver_pid=None,
        _inherited_fds=None,
        _preload_modules=["__main__"],
    )


def _forget(owner: object, **values: object) -> None:
    for name, value in values.items():
        if hasattr(owner, name):
            setattr(owner, name, value)


def reseed() -> None:
    """Seeds random generators from the system, as in a fresh process: forks share their state.

    Python's own reseeds itself at a fork; CUDA's generators do not exist yet.
    """
    torch = sys.modules["torch"]
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy"].random.seed()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0 and torch.get_num_threads() != int(threads):
        # The variable is read when the library loads, which was before the fork.
        torch.set_num_threads(int(threads))
