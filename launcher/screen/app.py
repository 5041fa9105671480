"""The screen of ``launcher top``: one run, refreshed in place. Imported only to be shown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, ProgressBar, RichLog, Static

from launcher.agent.worker_exit import read_tail
from launcher.api.stacks import render_stacks, take_stacks
from launcher.api.stopping import stop_run
from launcher.contract.clock import SystemClock
from launcher.contract.ending import show_text
from launcher.contract.errors import LauncherError
from launcher.runs.folder import RunFolder
from launcher.runs.summary import render_headline
from launcher.runs.timeline import Moment
from launcher.screen.snapshot import (
    HEADER,
    NodeRow,
    RunSnapshot,
    find_outputs,
    read_snapshot,
    render_training,
)

READING_SHARE = 0.05
"""The share of time that may go into reading: a run of many nodes is read less often."""
REFRESH_S = 1.0
"""How often an open log is read again."""
LOG_BYTES = 1 << 16
MOST_EVENTS = 200
SURE_S = 10.0
"""Seconds within which a second ``x`` ends the run."""
YIELDS = 10
"""Added to the process' niceness, so that a training on this machine goes first."""


class RunScreen(App[None]):
    """Shows a run until ``q``; the run goes on as before."""

    CSS = """
    #state, #training { max-height: 2; padding: 0 1; }
    ProgressBar { padding: 0 1; }
    DataTable { height: 2fr; }
    RichLog { height: 1fr; border-top: solid $primary; }
    Page VerticalScroll { border: solid $primary; margin: 1 2; background: $surface; }
    """
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("l", "log", "log of the node"),
        Binding("s", "stacks", "stacks"),
        Binding("slash", "filter", "filter"),
        Binding("x", "stop", "stop the run"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, run: RunFolder, interval_s: float) -> None:
        super().__init__()
        self._watched, self._interval_s = run, interval_s
        self._seen_nodes: Sequence[NodeRow] = ()
        self._seen_events: Sequence[Moment] = ()
        self._words = ""
        self._asked_at = -SURE_S

    def compose(self) -> ComposeResult:
        """The parts, from top to bottom."""
        yield Static(f"{self._watched.run_id}: reading", id="state", markup=False)
        yield ProgressBar(show_eta=False)
        yield Static(id="training", markup=False)
        yield DataTable(cursor_type="row")
        yield RichLog(wrap=True)
        yield Input(placeholder="node, host or state; Enter shows them")
        yield Footer()

    def on_mount(self) -> None:
        """Begins to read."""
        os.nice(YIELDS)
        self.query_one(ProgressBar).display = self.query_one(Input).display = False
        table = self.query_one(DataTable)
        for name in HEADER:
            table.add_column(name, key=name)
        table.focus()
        self.read_run()

    @work(thread=True)
    def read_run(self) -> None:
        """Reads the run and shows it, now and again later."""
        began = time.monotonic()
        try:
            self.call_from_thread(self.show, read_snapshot(self._watched, time.time()))
        except (LauncherError, OSError) as error:
            self.call_from_thread(self.query_one("#state", Static).update, str(error))
        pause_s = max(self._interval_s, (time.monotonic() - began) / READING_SHARE)
        self.call_from_thread(self.set_timer, pause_s, self.read_run)

    def show(self, snapshot: RunSnapshot) -> None:
        """Puts a snapshot on the screen; only what has changed is drawn anew."""
        report, goodput = snapshot.report, snapshot.report.goodput
        self.query_one("#state", Static).update(render_headline(report))
        self.query_one("#training", Static).update(render_training(report))
        if goodput and goodput.points and goodput.until:
            bar = self.query_one(ProgressBar)
            bar.display = True
            bar.update(total=goodput.until, progress=goodput.points[-1].step)
        self._seen_nodes = snapshot.nodes
        self._show_nodes()
        events = report.timeline[-MOST_EVENTS:]
        if events != self._seen_events:
            self._seen_events, log = events, self.query_one(RichLog)
            log.clear()
            log.write(show_text("\n".join(map(str, events))))

    def _show_nodes(self) -> None:
        table = self.query_one(DataTable)
        cells = {str(row.report.node_index): row.cells() for row in self._seen_nodes}
        # As text: a string might hold markup.
        rows = {
            key: [*map(Text, row)] for key, row in cells.items() if self._words in " ".join(row[:2])
        }
        if [key.value for key in table.rows] != [*rows]:
            place = table.cursor_row
            table.clear()
            for key, row in rows.items():
                table.add_row(*row, key=key)
            table.move_cursor(row=place)
        for key, row in rows.items():
            if table.get_row(key) != row:
                for column, cell in zip(HEADER, row, strict=True):
                    table.update_cell(key, column, cell, update_width=True)
        # Otherwise the table keeps a thousand old drawings of each row.
        table.notify_style_update()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Shows the nodes that contain the typed words."""
        self._words = event.value.strip()
        self._show_nodes()

    def on_input_submitted(self) -> None:
        """Goes back to the table."""
        self.query_one(Input).display = False
        self.query_one(DataTable).focus()

    def action_filter(self) -> None:
        """Asks which nodes to show."""
        words = self.query_one(Input)
        words.display = True
        words.focus()

    def action_log(self) -> None:
        """Shows what the node's first worker writes."""
        table = self.query_one(DataTable)
        if not table.row_count:
            return
        node = int(str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value))

        def read_outputs() -> str:
            paths = find_outputs(self._watched).get(node, ())
            return "".join(f"== {path.name}\n{read_tail(path, LOG_BYTES)}" for path in paths)

        self.push_screen(Page(f"node {node}", read_outputs, every_s=REFRESH_S))

    def action_stacks(self) -> None:
        """Has the agents look at all ranks."""

        def read_stacks() -> str:
            return render_stacks(take_stacks(self._watched, SystemClock()))

        self.push_screen(Page("stacks", read_stacks))

    def action_stop(self) -> None:
        """Ends the run if asked twice within ``SURE_S``."""
        now = time.monotonic()
        if now - self._asked_at < SURE_S:
            self.push_screen(Page("stopping", lambda: stop_run(self._watched, None)))
            return
        self._asked_at = now
        self.notify("x again ends the run, and removes what is left of it", timeout=SURE_S)


class Page(ModalScreen[None]):
    """A text over the screen, read in a thread, and again every ``every_s`` seconds if not 0."""

    BINDINGS: ClassVar = [Binding("escape,q", "dismiss", "back")]

    def __init__(self, title: str, read: Callable[[], str], every_s: float = 0.0) -> None:
        super().__init__()
        self._title, self._read, self._every_s = title, read, every_s

    def compose(self) -> ComposeResult:
        """The text, and how to leave it."""
        with VerticalScroll() as area:
            area.border_title, area.border_subtitle = self._title, "escape: back"
            yield Static("...", id="text", markup=False)

    def on_mount(self) -> None:
        """Begins to read; a text that grows is followed until a person scrolls."""
        self.query_one(VerticalScroll).anchor(self._every_s > 0)
        self.read_page()

    @work(thread=True)
    def read_page(self) -> None:
        """Reads the text and shows it."""
        try:
            text = self._read()
        except (LauncherError, OSError) as error:
            text = f"error: {error}"
        self.app.call_from_thread(self._put, show_text(text))

    def _put(self, text: str) -> None:
        if not self.is_attached:
            return  # The page was left while it read.
        self.query_one("#text", Static).update(text)
        if self._every_s:
            self.set_timer(self._every_s, self.read_page)
