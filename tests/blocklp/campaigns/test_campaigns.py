"""Campaigns on processes of this machine: every task ends once, whatever the others do."""

import os
import signal
import time

import pytest

from blocklp.campaigns import InProcess, LocalExecutor, Records, Task, completed
from blocklp.errors import FormatError, OptionError, ProcessError

from . import tasks

POISON = {
    "crash": (tasks.crash, ProcessError, "SIGSEGV"),
    "killed": (tasks.killed, ProcessError, "memory"),
    "leave": (tasks.leave, ProcessError, "code 3"),
    "memory": (tasks.out_of_memory, MemoryError, ""),
    "odd": (tasks.odd, RuntimeError, "Odd: odd 3"),
    "forever": (tasks.forever, ProcessError, "at its limit"),
}


@pytest.fixture(scope="module")
def executor():
    with LocalExecutor(2, threads=1) as made:
        yield made


def test_poison_takes_one_process_and_no_other_task(executor):
    wanted = [Task(k, tasks.square, (k,)) for k in range(20)]
    wanted[5:5] = [Task(name, function, (), limit=0.5) for name, (function, _, _) in POISON.items()]
    events = []
    found = list(completed(executor, wanted, total=len(wanted), callback=events.append))
    assert sorted(str(outcome.key) for outcome in found) == sorted(str(task.key) for task in wanted)
    ended = {outcome.key: outcome for outcome in found}
    assert [ended[k].value[0] for k in range(20)] == [k * k for k in range(20)]
    for name, (_, kind, said) in POISON.items():
        assert isinstance(ended[name].error, kind) and said in str(ended[name].error), name
    # Four of them end a process; it is replaced once for each.
    assert len({ended[k].value[1] for k in range(20)}) <= 2 + 4
    assert (events[-1].done, events[-1].failed, events[-1].running) == (26, len(POISON), ())
    assert all(len(event.running) <= 2 for event in events)


def test_an_error_tells_where_it_was_raised(executor):
    [outcome] = completed(executor, [Task("a", divmod, (1, 0))])
    assert isinstance(outcome.error, ZeroDivisionError) and any("worker.py" in note for note in outcome.error.__notes__)


def test_a_process_that_is_killed_between_tasks_is_no_error_of_the_next(executor):
    pids = {executor.submit(tasks.square, k).result()[1] for k in range(4)}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert [executor.submit(tasks.square, k).result()[0] for k in range(4)] == [0, 1, 4, 9]


def test_data_are_loaded_once_by_a_process(executor):
    shared = executor.share({"weights": [1, 2]})
    for k in range(4):
        assert executor.submit(tasks.read, shared, k).result() == ({"weights": [1, 2]}, True, k)


def test_a_key_is_done_once_and_tasks_are_taken_as_workers_are_free():
    taken = []

    def wanted():
        for k in (1, 2, 1, 3):
            taken.append(k)
            yield Task(k, tasks.square, (k,))

    found = completed(InProcess(), wanted())
    assert next(found).key == 1 and taken == [1]
    assert [outcome.key for outcome in found] == [2, 3]


def test_the_deadline_ends_a_campaign_and_what_runs():
    began = time.perf_counter()
    with LocalExecutor(2) as executor:
        wanted = [Task(k, tasks.wait, (0.0 if k < 4 else 60.0, k)) for k in range(9)]
        found = [outcome.key for outcome in completed(executor, wanted, time_limit=2.0)]
    assert sorted(found) == [0, 1, 2, 3] and time.perf_counter() - began < 20


def test_an_interrupt_reaches_the_campaign_and_ends_what_runs():
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), LocalExecutor(2) as executor:
        for outcome in completed(executor, [Task(k, tasks.wait, (60.0 * k, k)) for k in range(3)]):
            assert outcome.key == 0
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.signal(signal.SIGALRM, handler)
    assert time.perf_counter() - began < 20


def test_functions_of_a_script_are_refused(executor, monkeypatch):
    def local():
        pass

    local.__module__ = "__main__"
    with pytest.raises(OptionError, match="move it to a module"):
        executor.submit(local)
    with pytest.raises(OptionError, match="workers=0"):
        LocalExecutor(0)


def test_records_are_whole_lines_of_one_writer(tmp_path):
    path = tmp_path / "r.jsonl"
    with Records(path, str.splitlines) as records:
        assert records.new and records.found == []
        records.append("one")
        records.append("two")
        with pytest.raises(ProcessError, match="another process writes"):
            Records(path, str.splitlines)
    path.write_text(path.read_text() + "thr")
    with Records(path, str.splitlines) as records:
        assert records.found == ["one", "two"] and not records.new
        records.append("three")
    assert path.read_text() == "one\ntwo\nthree\n"

    def refuse(text):
        raise FormatError("other")

    path.write_text("kept\nas it is")
    with pytest.raises(FormatError):
        Records(path, refuse)
    assert path.read_text() == "kept\nas it is"
