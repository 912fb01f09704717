"""What is refused in all processes at once, and what becomes of the others where one fails or stalls."""

import os
import re
import time

import pytest
import torch
import torch.distributed as dist

import blocklp as bl
from blocklp.distributed import Mesh
from blocklp.errors import ModelError, OptionError, ProcessError
from blocklp.methods import Admm

from .processes import model, together


def refused(kind):
    """A solve that is refused."""
    made = model()
    options = {}
    if kind == "other costs" and dist.get_rank() == 2:
        made = model(seed=1)
    if kind == "other tol":
        options["tol"] = 1e-3 if dist.get_rank() == 1 else 1e-4
    if kind in ("rows", "other rows"):
        made.add(made.variables["y"].sum() <= 3 + (kind == "other rows" and dist.get_rank() == 1))
        options["method"] = "admm" if kind == "rows" else "auto"
    if kind == "method":
        options["method"] = "prox"
    models = [made, model(seed=1)] if kind == "instances" else made
    return bl.compile(models, backend="torch").solve(mesh=Mesh(timeout=20.0), **options).status


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("other costs", ProcessError, "of process 2 differs"),
        ("other tol", ProcessError, "of process 1 differs"),
        ("rows", OptionError, "rows"),
        ("other rows", ProcessError, "of process 1 differs"),
        ("method", OptionError, "by ADMM"),
        ("instances", ModelError, "2 instances"),
    ],
)
def test_all_processes_refuse(kind, error, words):
    for answer in together(refused, 3, kind):
        assert isinstance(answer, error)
        assert words in str(answer)


def names_process_1(error):
    """Whether a message names the process that failed; also one that it took along and that does not answer in time."""
    return re.match(r"process(es)? ([02], )?1(, 2)? failed, or did not answer within", str(error)) is not None


def failing(kind, timeout):
    """A solve in which process 1 does something at its third check; with the seconds that it took."""
    finish, calls, began = Admm.finish, [], time.monotonic()

    def changed(self, plan, state):
        calls.append(0)
        if dist.get_rank() == 1 and len(calls) == 3:
            if kind == "raises":
                raise ValueError("no more")
            if kind == "interrupt":
                raise KeyboardInterrupt
            if kind == "ends":
                os._exit(3)
            time.sleep(60)
        return finish(self, plan, state)

    Admm.finish = changed
    try:
        model().compile(backend="torch").solve(mesh=Mesh(timeout=timeout), tol=0.0)
    except BaseException as error:
        return error, time.monotonic() - began


@pytest.mark.parametrize(("kind", "raised"), [("raises", ValueError), ("interrupt", KeyboardInterrupt)])
def test_an_error_in_one_process_ends_all(kind, raised):
    for _ in range(4):  # which process learns of it first is chance
        answers = together(failing, 3, kind, 25.0)
        assert isinstance(answers[1][0], raised)
        for rank in (0, 2):
            error, seconds = answers[rank]
            assert isinstance(error, ProcessError)
            assert names_process_1(error)
            assert seconds < 25


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "timeout"), [("ends", 25.0), ("stalls", 4.0)])
def test_a_process_that_is_gone_or_stalls_is_named(kind, timeout):
    answers = together(failing, 3, kind, timeout, silent=1)
    assert answers[1] is None
    for rank in (0, 2):
        error, seconds = answers[rank]
        assert isinstance(error, ProcessError)
        assert names_process_1(error)
        assert seconds < 20


def absent():
    """A solve that process 1 does not begin."""
    if dist.get_rank() == 1:
        time.sleep(60)
    return model().compile(backend="torch").solve(mesh=Mesh(timeout=1.0))


def test_a_process_that_does_not_begin_is_not_waited_for():
    answers = together(absent, 2, silent=1)
    assert isinstance(answers[0], ProcessError)
    assert "not all of the 2 processes" in str(answers[0])


def test_a_mesh_needs_processes():
    solver = model().compile()
    with pytest.raises(ProcessError, match="init_process_group"):
        solver.solve(mesh=True)
    with pytest.raises(OptionError, match="sums"):
        Mesh(sums="exact")
    with pytest.raises(OptionError, match="timeout"):
        Mesh(timeout=0)


def wrong_group():
    """A solve on something that is no group."""
    return model().compile().solve(mesh="all")


def few_blocks():
    """More processes than blocks."""
    made = bl.Model()
    x = made.variable("x", 2, lower=0, upper=1)
    made.minimize(x @ torch.tensor([1.0, -1.0]))
    return made.compile(backend="torch").solve(mesh=True)


def test_other_groups_and_few_blocks_are_refused():
    (answer,) = together(wrong_group, 1)
    assert isinstance(answer, OptionError)
    for answer in together(few_blocks, 3):
        assert isinstance(answer, ModelError)
        assert "of 2 blocks one of 3 processes has none" in str(answer)
    found = together(few_blocks, 2)
    assert [float(answer.bound[0]) for answer in found] == pytest.approx([-1.0, -1.0])
