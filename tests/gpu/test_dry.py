"""``make gpu`` without a GPU: the CPU stands in for CUDA, so that what can run has run."""

from tests.gpu.__main__ import find_branches, find_unrun, render_page


def test_the_page_shows_each_result_and_the_lines_that_never_ran():
    page = render_page("a machine", [("restart", "failed", 3.0, "SIGSEGV")])
    assert "| restart | A killed CUDA worker is started again" in page
    assert "| failed | 3 | SIGSEGV |" in page
    assert any("set_device" in line for line in find_unrun())
    assert "fabric_train/breakdown.py: _now" in find_branches()
    assert "make gpu GPU_PYTHON=python3 WHEELS=FOLDER" in page
