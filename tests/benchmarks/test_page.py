"""The results in the docs: a section for each benchmark, replaced one by one."""

import pytest

from benchmarks.record import BEGIN, END, replace_section

ORDER = ("start", "render", "help")
EMPTY = f"# Title\n\n{BEGIN}\n{END}\n\nend\n"


def test_a_section_replaces_that_of_its_benchmark_alone():
    page = EMPTY
    for name, text in (("start", "one"), ("help", "two"), ("start", "three")):
        page = replace_section(page, name, text, ORDER)
    assert page == (
        f"# Title\n\n{BEGIN}\n\n"
        "<!-- benchmark: start -->\nthree\n\n"
        "<!-- benchmark: help -->\ntwo\n\n"
        f"{END}\n\nend\n"
    )


@pytest.mark.parametrize("page", ["", BEGIN, f"text {END}"])
def test_a_page_without_its_markers_is_refused(page):
    with pytest.raises(ValueError, match="lacks"):
        replace_section(page, "start", "new", ORDER)
