"""A report as a page: text is text, it asks for nothing, stays small, and always comes."""

import functools
import re
import subprocess
import threading
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from launcher.runs.page import render_page
from launcher.runs.plot import draw_course, draw_lives
from tests.launcher.runs.test_page import GOODPUT, MORE, TOLD
from tests.launcher.worker_ends import worker_end

OUTER = """<!doctype html><iframe src="page.html" width="{width}" height="600"></iframe><p></p>
<script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const seen = [page.title, page.documentElement.scrollWidth];
  document.querySelector("p").textContent = "seen " + seen.join(" ");
}}</script>"""


@pytest.mark.chromium
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_runs_nothing_of_it_and_shows_it_within_a_phone_and_a_screen(tmp_path, width):
    evil = (
        "</pre><script>document.title = 'ran'</script><img src=x onerror=\"document.title='ran'\">"
    )
    long = replace(TOLD, run_id="digits", job=evil + "x" * 300, detail=evil, restarts={evil: 1})
    end = worker_end(exception=evil, log="/a" * 200, log_tail=("y" * 400, evil))
    more = replace(MORE, settings={"env.NAME": evil}, failures=[(end, evil)], diff="z" * 900)
    side = replace(more, report=long, lives=draw_lives(long), verdict=evil)
    pictures = [draw_course({"a": GOODPUT, "b": GOODPUT}, by=by) for by in ("time", "samples")]
    (tmp_path / "page.html").write_text(render_page([side, side], pictures))
    (tmp_path / "outer.html").write_text(OUTER.format(width=width))
    serve = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/outer.html"
        done = subprocess.run(
            [*CHROMIUM, f"--user-data-dir={tmp_path}/profile", "--dump-dom", url],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        server.shutdown()
    seen = re.search(r"seen (.*) (\d+)<", done.stdout)
    assert seen, done.stdout + done.stderr
    assert seen[1] == "digits and digits"
    assert int(seen[2]) <= width


CHROMIUM = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=9000")
