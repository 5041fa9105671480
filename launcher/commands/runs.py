"""Commands about runs: ``ps`` of all, the others of one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from launcher.api.choose_target import rooms
from launcher.commands.arguments import add_command, add_run
from launcher.commands.parser import natural, seconds


def add(commands: Any) -> None:
    """Adds the commands to the program's parser."""
    text = "list runs"
    add_command(commands, "ps", _later("ps"), text, _add_to_ps)
    text = "show one run and its nodes"
    add_command(commands, "status", _later("status"), text, _add_to_status)
    text = "tell what happened: first cause, restarts, nodes, timeline"
    add_command(commands, "report", _later("report"), text, _add_to_report)
    text = "print a run's output, each line with its node and rank"
    add_command(commands, "logs", _later("logs"), text, _add_to_logs)
    text = "end a run and remove what is left of it"
    add_command(commands, "stop", _later("stop"), text, _add_to_stop)
    text = "change the number of nodes of an elastic run"
    add_command(commands, "scale", _later("scale"), text, _add_to_scale)


def _add_to_ps(listing: argparse.ArgumentParser) -> None:
    listing.add_argument("-a", "--all", action="store_true", help="ended runs too")
    listing.add_argument("--json", action="store_true")
    listing.add_argument(
        "--on",
        choices=[room.name for room in rooms() if room.finds_runs == "alone"],
        help="the runs of a cluster, whoever started them",
    )
    for room in rooms():
        room.add_options(listing, "run")


def _add_to_status(status: argparse.ArgumentParser) -> None:
    add_run(status)
    status.add_argument("--json", action="store_true")


def _add_to_report(report: argparse.ArgumentParser) -> None:
    add_run(report)
    report.add_argument("--json", action="store_true")
    report.add_argument(
        "--png", metavar="FILE", help="also draw loss, workers and failures over time (matplotlib)"
    )
    report.add_argument(
        "--claim",
        metavar="DIR",
        help="Kubernetes, without the run's folder: where its claim is mounted on this machine",
    )


def _add_to_logs(logs: argparse.ArgumentParser) -> None:
    add_run(logs)
    logs.epilog = (
        "The workers' stdout goes to stdout; their stderr and the agents' lines to stderr. With"
        " --follow the exit code of a failed run is its own; Ctrl-C ends the output, not the run."
    )
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    logs.add_argument("--rank", type=natural, metavar="R", help="of one rank only")
    logs.add_argument("-v", "--verbose", action="store_true", help="the agents' own lines too")


def _add_to_stop(stop: argparse.ArgumentParser) -> None:
    add_run(stop)
    stop.epilog = "Without RUN: the newest run that goes on; the others that go on are named."
    stop.add_argument(
        "--grace",
        type=seconds,
        metavar="S",
        help="seconds until the kill (default: stop_grace_s of the job)",
    )
    stop.add_argument(
        "--keep", action="store_true", help="on Kubernetes: keep the job's object, suspended"
    )


def _add_to_scale(scale: argparse.ArgumentParser) -> None:
    add_run(scale)
    scale.add_argument("nodes", type=natural, metavar="N", help="from MIN to MAX of its nnodes")


def _later(name: str) -> Callable[[argparse.Namespace], int]:
    """The function of that name, whose imports only a command about a run needs."""

    def call(arguments: argparse.Namespace) -> int:
        from launcher.commands import asked_of_runs

        return int(getattr(asked_of_runs, name)(arguments))

    return call
