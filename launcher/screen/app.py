"""The screen of ``launcher top``: one run, refreshed in place. Imported where it is shown alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import ClassVar

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
from launcher.contract.errors import LauncherError
from launcher.runs.folder import RunFolder
from launcher.screen.snapshot import (
    HEADER,
    RunSnapshot,
    find_outputs,
    read_snapshot,
    render_progress,
    render_state,
    show_text,
)

READING_SHARE = 0.05
"""Of the time may go into reading: a run of many nodes is looked at less often."""
LOG_BYTES = 1 << 16
YIELDS = 10
"""Added to the process' niceness: on the machine of the training that goes first."""


class RunScreen(App[None]):
    """Shows a run until ``q``; the run goes on as before.

    With ``interrupt``, Ctrl-C does that, and the screen ends with the run's launcher.
    """

    CSS = """
    #state, #training { height: 1; padding: 0 1; }
    #progress { padding: 0 1; display: none; }
    #progress.known { display: block; }
    #nodes { height: 2fr; }
    #events { height: 1fr; border-top: solid $primary; }
    #filter { display: none; }
    #filter.open { display: block; }
    Page VerticalScroll { border: solid $primary; margin: 1 2; background: $surface; }
    """
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("l", "log", "log of the node"),
        Binding("s", "stacks", "stacks"),
        Binding("slash", "filter", "filter"),
        Binding("x", "stop", "stop the run"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, run: RunFolder, interval_s: float, interrupt: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._interrupt = interrupt
        self._watched, self._interval_s = run, interval_s
        self._seen: RunSnapshot | None = None
        self._words = ""
        self._told = 0.0
        """When the newest event that is shown came, in seconds since the submission."""
        self._over = threading.Event()

    def compose(self) -> ComposeResult:
        """The parts, from top to bottom."""
        yield Static(f"{self._watched.run_id}: reading", id="state", markup=False)
        yield ProgressBar(id="progress", show_eta=False)
        yield Static(id="training", markup=False)
        yield DataTable(id="nodes", cursor_type="row")
        yield RichLog(id="events", max_lines=200, wrap=True)
        yield Input(placeholder="node, host or state; Enter shows them", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Begins to read."""
        os.nice(YIELDS)
        table = self.query_one(DataTable)
        for name in HEADER:
            table.add_column(name, key=name)
        table.focus()
        self.read_on()

    def on_unmount(self) -> None:
        """Ends the reading."""
        self._over.set()

    @work(thread=True)
    def read_on(self) -> None:
        """Reads the run again and again, until the screen ends."""
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self.call_from_thread(self.show, read_snapshot(self._watched, time.time()))
            except (LauncherError, OSError) as error:
                self.call_from_thread(self.query_one("#state", Static).update, str(error))
            if self._interrupt is not None and self._watched.launcher_pid() is None:
                self.call_from_thread(self.exit)
                return
            spent_s = time.monotonic() - began
            self._over.wait(max(self._interval_s, spent_s / READING_SHARE))

    def show(self, seen: RunSnapshot) -> None:
        """Puts a snapshot on the screen; only what has changed is drawn anew."""
        self._seen = seen
        self.query_one("#state", Static).update(render_state(seen))
        self.query_one("#training", Static).update(render_progress(seen))
        bar = self.query_one(ProgressBar)
        bar.set_class(bool(seen.until), "known")
        bar.update(total=seen.until, progress=seen.step or 0)
        self._show_nodes(seen)
        log = self.query_one("#events", RichLog)
        for event in seen.events:
            if event.after_s > self._told:
                where = f"{event.node_index}.{event.incarnation}"
                log.write(f"{event.after_s:9.2f}  {where}  {show_text(event.text)}")
        self._told = max((event.after_s for event in seen.events), default=self._told)

    def _show_nodes(self, seen: RunSnapshot) -> None:
        table = self.query_one(DataTable)
        rows = {
            str(row.node_index): row.cells()
            for row in seen.nodes
            if self._words in " ".join(row.cells()[:2])
        }
        if [key.value for key in table.rows] != list(rows):
            place = table.cursor_row
            table.clear()
            for key, cells in rows.items():
                table.add_row(*cells, key=key)
            table.move_cursor(row=place)
            return
        for key, cells in rows.items():
            for column, cell in zip(HEADER, cells, strict=True):
                if table.get_cell(key, column) != cell:
                    table.update_cell(key, column, cell, update_width=True)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Shows the nodes that have the words."""
        self._words = event.value.strip()
        if self._seen is not None:
            self._show_nodes(self._seen)

    def on_input_submitted(self) -> None:
        """Goes back to the table."""
        self.query_one("#filter").remove_class("open")
        self.query_one(DataTable).focus()

    def action_interrupt(self) -> None:
        """What Ctrl-C means where the run is followed; else it leaves the screen."""
        if self._interrupt is None:
            self.exit()
            return
        self._interrupt()
        self.notify("stopping the run; Ctrl-C again ends it at once")

    def action_filter(self) -> None:
        """Asks which nodes to show."""
        self.query_one("#filter").add_class("open").focus()

    def action_log(self) -> None:
        """Shows what the node's first worker writes."""
        table = self.query_one(DataTable)
        if not table.row_count:
            return
        node = int(str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value))

        def read() -> str:
            paths = find_outputs(self._watched).get(node, ())
            return "".join(f"== {path.name}\n{read_tail(path, LOG_BYTES)}" for path in paths)

        self.push_screen(Page(f"node {node}", read, every_s=1.0))

    def action_stacks(self) -> None:
        """Has the agents look at all ranks."""

        def read() -> str:
            return render_stacks(take_stacks(self._watched, SystemClock()))

        self.push_screen(Page("stacks", read))

    def action_stop(self) -> None:
        """Asks once more, and ends the run."""
        self.push_screen(Page(f"y ends {self._watched.run_id}", lambda: "", self._stop, SURE))

    def _stop(self) -> str:
        return stop_run(self._watched, None)


SURE = "y stops the run within its grace, and removes what is left of it."


class Page(ModalScreen[None]):
    """A text over the screen, read in a thread; ``escape`` closes it.

    With ``act``, ``y`` does that and shows what it says.
    """

    BINDINGS: ClassVar = [
        Binding("escape,q", "dismiss", "back"),
        Binding("y", "act", "yes", show=False),
    ]

    def __init__(
        self,
        title: str,
        read: Callable[[], str],
        act: Callable[[], str] | None = None,
        text: str = "",
        *,
        every_s: float = 0.0,
    ) -> None:
        super().__init__()
        self._title, self._read, self._act, self._every_s = title, read, act, every_s
        self._text, self._over = text, threading.Event()

    def compose(self) -> ComposeResult:
        """The text, and how to leave it."""
        with VerticalScroll() as area:
            area.border_title, area.border_subtitle = self._title, "escape: back"
            yield Static(self._text or "...", id="text", markup=False)

    def on_mount(self) -> None:
        """Begins to read."""
        if self._act is None:
            self.read_on()

    def on_unmount(self) -> None:
        """Ends the reading."""
        self._over.set()

    @work(thread=True)
    def read_on(self) -> None:
        """Reads the text, and again while the page is open where it goes on."""
        self._show(self._read)
        while self._every_s and not self._over.wait(self._every_s):
            self._show(self._read)

    def action_act(self) -> None:
        """Does what the page asks about, once."""
        act, self._act = self._act, None
        if act is not None:
            self.query_one("#text", Static).update("stopping ...")
            self.run_worker(lambda: self._show(act), thread=True)

    def _show(self, read: Callable[[], str]) -> None:
        try:
            text = read()
        except (LauncherError, OSError) as error:
            text = f"error: {error}"
        self.app.call_from_thread(self._put, show_text(text))

    def _put(self, text: str) -> None:
        area = self.query_one(VerticalScroll)
        follows = area.scroll_y >= area.max_scroll_y
        self.query_one("#text", Static).update(text)
        if self._every_s and follows:
            area.scroll_end(animate=False)
