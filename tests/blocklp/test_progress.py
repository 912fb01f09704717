import io
import sys
import threading
import time
import types

import pytest
import torch
from rich.console import Console

import blocklp as bl
from blocklp.progress import ElapsedTime, Progress, SearchProgress, describe
from blocklp.search.best_first import SearchEvent


def model():
    made = bl.Model(batch=2)
    x = made.variable("x", 3, lower=0, upper=1)
    made.minimize(torch.tensor([[1.0, -1, 2], [-2, -2, -2]]).double() * x @ torch.ones(3).double())
    return made


def event(gap, status):
    batch = len(gap)
    bound = torch.arange(batch).double()
    return bl.Event(70, 1.25, bound, bound + 1, torch.tensor(gap).double(), torch.tensor(status))


def test_line_of_one_instance():
    assert describe(event([0.5], [0])) == "70 passes | 1.2 s | bound 0 | primal 1 | gap 5.0e-01"


def test_line_of_a_batch_shows_the_largest_gap_among_the_running():
    line = describe(event([0.9, 0.1, 0.2], [int(bl.Status.STALLED), 0, 0]))
    assert "1 of 3 instances finished" in line
    assert "instance 2 | bound 2 | primal 3 | gap 2.0e-01" in line


def test_line_of_an_instance_without_a_primal_point():
    assert "gap inf" in describe(event([float("inf")], [0]))


@pytest.mark.parametrize("terminal", [True, False])
def test_it_draws_on_terminals_only_and_the_solve_is_the_same(terminal):
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=terminal, width=120)) as progress:
        solution = model().solve(callback=progress)
    assert ("passes" in out.getvalue()) == terminal
    assert solution.bound.tolist() == model().solve().bound.tolist()


def test_standard_error_is_left_alone_without_a_terminal(capsys):
    with Progress() as progress:
        model().solve(callback=progress)
    assert capsys.readouterr() == ("", "")


def test_drawings_are_throttled():
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=True, width=120)) as progress:
        for _ in range(50):
            progress(event([0.5], [0]))
    # The line is drawn once, and once more when it is taken away.
    assert 1 <= out.getvalue().count("70 passes") <= 2


def test_nothing_is_drawn_outside_the_with_statement():
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=True))
    progress(event([0.5], [0]))
    assert out.getvalue() == ""


def test_an_error_within_ends_the_drawing():
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=True))
    with pytest.raises(RuntimeError), progress:
        raise RuntimeError
    before = out.getvalue()
    progress(event([0.5], [0]))
    assert out.getvalue() == before


class Notebook:
    """What a notebook's widgets show."""

    def __init__(self):
        self.drawn, self.cleared, self.closed = [], 0, False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def clear_output(self, wait):
        self.cleared += 1

    def close(self):
        self.closed = True


def test_a_notebook_shows_one_line_that_is_drawn_anew(monkeypatch):
    widget, shown = Notebook(), []
    display = types.ModuleType("IPython.display")
    display.display = shown.append
    widgets = types.ModuleType("ipywidgets")
    widgets.Output = lambda: widget
    for name, module in (("IPython", types.ModuleType("IPython")), ("IPython.display", display), ("ipywidgets", widgets)):
        monkeypatch.setitem(sys.modules, name, module)
    console = Console(force_jupyter=True)
    monkeypatch.setattr(Console, "print", lambda self, *what, **how: widget.drawn.append(str(what[0])))
    with Progress(console, interval=0.0) as progress:
        model().solve(callback=progress, tol=0, passes=40, check_every=10)
    assert shown[0] is widget and not any(other.text.strip() for other in shown[1:])
    assert widget.closed and widget.cleared == len(widget.drawn) >= 3


def test_searches_are_shown_by_the_same_line():
    out = io.StringIO()
    with SearchProgress(Console(file=out, force_terminal=True, width=120)) as progress:
        progress(SearchEvent(7, 3, 1.0, 2.0, 0.5))
    assert "7 nodes | 3 open | 0.5 s | bound 1 | incumbent 2 | gap 5.0e-01" in out.getvalue()


def drawn(terminal, seconds, **options):
    out = io.StringIO()
    with ElapsedTime("reading model.mps", Console(file=out, force_terminal=terminal, width=120), **options):
        time.sleep(seconds)
    return out.getvalue()


def test_work_that_reports_nothing_shows_what_it_is_once_it_takes_a_while():
    assert "reading model.mps | 0 s" in drawn(True, 0.5, after=0.01)
    assert "reading" not in drawn(True, 0.0)
    assert drawn(False, 0.1, after=0.01) == ""


def test_a_failure_ends_its_thread_and_gives_the_cursor_back():
    out, before = io.StringIO(), threading.active_count()
    with pytest.raises(KeyboardInterrupt), ElapsedTime("waiting", Console(file=out, force_terminal=True), after=0.01):
        raise KeyboardInterrupt
    assert threading.active_count() == before and "\x1b[?25h" in out.getvalue()
