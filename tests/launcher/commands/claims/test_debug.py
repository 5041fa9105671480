"""``run --debug`` on this machine, in a terminal, and by an editor's protocol."""

import socket
import subprocess

from tests.debugged import STOPS, Terminal, debug_rank_1

ALONE = ("--on", "local", "--nnodes", "1", "--debug", "0")
JOB = "name: tiny\nnproc_per_node: 1\nnnodes: 2\nstop_grace_s: 2\nagent: {hang_min_s: 1}\n"


def test_a_rank_stops_in_pdb_and_the_others_wait_however_long(launcher):
    launcher.write(STOPS, JOB)
    debug_rank_1(launcher, "job.yaml", "--on", "local")


def test_pdb_can_be_quit_and_a_restart_stops_again(launcher):
    launcher.write("breakpoint()\nprint('got on')\n", JOB + "max_restarts: 1\n")
    terminal = Terminal(launcher, "run", "job.yaml", *ALONE)
    terminal.wait("(Pdb) ")
    terminal.type("q")
    # A prompt may be drawn again below other lines; the line it stops at comes once for each stop.
    terminal.wait("-> print('got on')", 2)
    terminal.type("c")
    assert terminal.finish() == 0, terminal.text
    assert "got on" in terminal.text


def test_a_port_that_is_taken_is_refused(launcher):
    launcher.write("breakpoint()\n", JOB)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done: subprocess.CompletedProcess[str] = launcher(
            *("run", "job.yaml", "--on", "local", "--debug", "0", "--debug-port", port)
        )
    assert done.returncode == 2
    assert f"--debug-port {port}: Address already in use" in done.stderr
