import math
import time

import numpy as np
import pytest

import blocklp as bl
from blocklp.errors import OptionError, TimeLimitError


def test_a_limit_is_over_once_its_seconds_have_passed_and_no_sooner() -> None:
    deadline = bl.Deadline(0.02)
    while not deadline.over():
        assert deadline.left() <= 0.02
    assert deadline.elapsed() >= 0.02 and deadline.left() == 0.0


def test_no_limit_is_never_over_and_affords_everything() -> None:
    deadline = bl.Deadline()
    assert not deadline.over() and deadline.left() == math.inf and deadline.affords(1e9)
    deadline.check("nothing")


def test_a_limit_counts_from_where_it_is_told_to() -> None:
    assert bl.Deadline(5.0, began=time.perf_counter() - 6.0).over()
    assert not bl.Deadline(5.0, began=time.perf_counter() - 4.0).affords(2.0)


def test_a_deadline_is_handed_on_as_it_is_and_a_part_of_it_ends_no_later() -> None:
    deadline = bl.Deadline(0.5)
    assert bl.Deadline.of(deadline) is deadline
    assert deadline.within(100.0).left() <= 0.5 and bl.Deadline().within(2.0).left() <= 2.0
    assert bl.Deadline.of(np.float32(3)).seconds == 3.0


@pytest.mark.parametrize("seconds", [0, -1, math.nan, "5", None, True])
def test_what_is_no_positive_number_of_seconds_is_refused(seconds: object) -> None:
    with pytest.raises(OptionError, match="time_limit is"):
        bl.Deadline(seconds)  # type: ignore[arg-type]


def test_the_error_says_what_was_being_done() -> None:
    with pytest.raises(TimeLimitError, match=r"time limit of 1 s was reached while reading x\.uai"):
        bl.Deadline(1.0, began=time.perf_counter() - 2.0).check("reading x.uai")


def test_a_deadline_from_elsewhere_takes_the_clock_of_this_process() -> None:
    there = bl.Deadline(5.0, began=1e12)  # by a clock that is far ahead
    assert there.affords_once("search", 4.0) and there.left() > 5.0
    there.restart(bl.Deadline(2.0))
    assert 1.0 < there.left() <= 2.0 and not there.affords_once("search", 4.0)


def test_an_interrupt_ends_a_deadline_and_those_made_of_it() -> None:
    deadline = bl.Deadline()
    assert not (deadline.over() or deadline.interrupted)
    deadline.interrupt()
    assert deadline.over() and deadline.interrupted and deadline.left() == 0.0
    later = deadline.within(100.0)
    time.sleep(1e-6)
    assert later.over()
