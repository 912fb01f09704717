"""Models of which every process states a part: the bits are those of the whole model, cut into the same blocks."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

import blocklp as bl
from blocklp.distributed import solution_hash
from blocklp.errors import ModelError, OptionError, ProcessError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import AtMostOne, Edge, Simplex
from blocklp.problems.qpbo import shard_of

from .processes import model, random_qubo, together


def in_parts(options):
    """The solution of roof duality whose pairs processes share, in this process."""
    part = shard_of(random_qubo(60, 150), dist.get_rank(), dist.get_world_size())
    solver = part.compile(backend="torch")
    found = solver.solve(mesh=True, **options)
    again = solver.solve(mesh=True, **options)  # what the first solve had compiled of a part is not kept
    return {
        "hash": solution_hash(found, mesh=True),
        "again": solution_hash(again, mesh=True),
        "bound": float(found.bound[0]),
        "safe": float(found.safe_bound[0]),
        "objective": float(found.objective[0]),
        "y": found.x["y"].numpy(),
        "z": found.x["z"].numpy(),
        "pairs": part.blocks[0].scope.shape[0],
        "box": found.state.duals["box"].numpy(),
    }


def whole(options):
    """The hash of the whole model, cut into the same blocks: its products are in the order of the blocks."""
    qubo = random_qubo(60, 150)
    stated, ordered = model(), bl.Model()
    y = ordered.variable("y", qubo.n, lower=0, upper=1, grid=0.5)
    z = ordered.variable("z", len(qubo.edges), lower=0, upper=1)
    pairs = stated.blocks[0].scope
    ordered.add(stated.blocks[0].type, [y[pairs[:, :2]], z])
    ordered.minimize(y @ qubo.linear + z @ qubo.quadratic[(pairs[:, 2] - qubo.n).numpy()] + qubo.offset)
    return solution_hash(ordered.compile(backend="torch").solve(mesh=True, **options))


def test_parts_have_the_bits_of_the_whole_model():
    options = {"tol": 1e-5}
    (right,) = together(whole, 1, options)
    best = float(reference(model()).objective[0])
    for world in (1, 2, 3):
        answers = together(in_parts, world, options)
        assert {answer[name] for answer in answers for name in ("hash", "again")} == {right}
        assert sum(answer["pairs"] for answer in answers) == len(random_qubo(60, 150).edges)
        for answer in answers:
            assert answer["z"].shape == (1, answer["pairs"])
            assert (answer["y"] == answers[0]["y"]).all() and (answer["box"] == answers[0]["box"]).all()
            assert answer["objective"] == pytest.approx(best, rel=2e-5)
            assert answer["safe"] <= best
            assert answer["bound"] == pytest.approx(best, rel=2e-5)


def capacities(rank, world):
    """Sources that take at most one of their edges, capacities of destinations, which more of them costs, alike in all processes."""
    random, part = np.random.default_rng(4), bl.Model() if world is None else bl.Model.shard(rank, world)
    destination, weight, value = random.integers(0, 5, 30), random.uniform(0.5, 1.5, 30), random.uniform(0, 2, 30)
    mine = slice(None) if world is None else slice(*(3 * k for k in part.part.own(10).indices(10)[:2]))
    destination, weight, value = destination[mine], weight[mine], value[mine]
    more = part.variable("more", 5, lower=0, upper=3)
    x = part.variable("x", len(weight), lower=0, upper=1, private=world is not None)
    part.add(AtMostOne(3), x.reshape(-1, 3), name="sources")
    part.add(np.equal.outer(np.arange(5), destination) * weight @ x - more <= 0.8, name="capacity")
    part.maximize(torch.from_numpy(value) @ x - 0.7 * more.sum())
    return part


def with_capacities():
    """The solution of the capacities whose sources processes share, in this process."""
    model = capacities(dist.get_rank(), dist.get_world_size())
    found = model.compile(backend="torch").solve(mesh=True, tol=1e-6)
    return {
        "hash": solution_hash(found, mesh=True),
        "bound": float(found.bound[0]),
        "safe": float(found.safe_bound[0]),
        "objective": float(found.objective[0]),
        "price": found.price(model.rows[0]).numpy(),
        "slack": found.slack("capacity").numpy(),
        "x": found.raw_x.numpy(),
    }


def whole_capacities():
    """The hash of the whole model, its slack, and the activities of its point."""
    found = capacities(0, None).compile(backend="torch").solve(mesh=True, tol=1e-6)
    return solution_hash(found), found.slack("capacity").numpy()


def test_parts_with_rows_have_the_bits_of_the_whole_model():
    ((right, slack),) = together(whole_capacities, 1)
    best = float(reference(capacities(0, None)).objective[0])
    for world in (1, 2, 3):
        answers = together(with_capacities, world)
        assert {answer["hash"] for answer in answers} == {right}
        assert sum(answer["x"].shape[1] - 5 for answer in answers) == 30
        for answer in answers:
            assert answer["bound"] == pytest.approx(best, rel=2e-6)
            assert answer["safe"] >= best
            assert answer["objective"] == pytest.approx(best, rel=2e-6)
            assert answer["slack"] == pytest.approx(slack, abs=1e-12)
            assert (answer["price"] == answers[0]["price"]).all()


def different(kind):
    """A part that does not fit the others, or is none for a mesh."""
    rank, world = dist.get_rank(), dist.get_world_size()
    part = bl.Model.shard(0 if kind == "rank" else rank, world)
    x = part.variable("x", 4, lower=0, upper=1)
    if not (kind == "none" and rank):
        part.variable("more" if kind == "name" and rank else "own", 2 + rank, lower=0, upper=1, private=True)
    part.add(Simplex(2), x.reshape(2, 2))
    part.minimize(x.sum() * (1.0 + (kind == "cost") * rank))
    if kind == "hook":
        part.repair_with(lambda values: values)
    return part.solve(backend="torch", mesh=None if kind == "alone" else True).bound


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("rank", "the part of process 0 of 2, and this is process 1"),
        ("name", "of process 1 differs"),
        ("none", "private or not"),
        ("cost", "of process 1 differs"),
        ("hook", "take the hook away"),
        ("alone", "solve it by mesh="),
    ],
)
def test_parts_that_do_not_fit_are_refused(kind, words):
    answers = together(different, 2, kind)
    assert all(isinstance(answer, ModelError | ProcessError) for answer in answers)
    # Where both refuse, the one that is first may be gone before the other has begun.
    assert any(words in str(answer) for answer in answers)


def star(method):
    """A star, whose edges processes share: its middle is a variable of all, its leaves are in one edge each."""
    part = bl.Model.shard(dist.get_rank(), dist.get_world_size())
    y = part.variable("y", 5, lower=0, upper=1)
    mine = torch.arange(1, 5)[part.part.own(4)]
    z = part.variable("z", len(mine), lower=0, upper=1, private=True)
    part.add(Edge(), [y[torch.stack([torch.zeros_like(mine), mine], 1)], z])
    part.minimize(y @ torch.tensor([-1.0, -2, 1, -1, 0.5]) + 1.5 * z.sum())
    found = part.compile(backend="torch").solve(mesh=True, method=method, tol=1e-6)
    return float(found.bound[0]), solution_hash(found, mesh=True)


def test_blocks_without_proximal_points_are_solved_by_pdhg():
    """By hand: leaves 1 and 3 alone give -3, the middle with or without them no less."""
    ((bound, right),) = together(star, 1, "auto")
    assert bound == pytest.approx(-3.0, abs=1e-5)
    for number, digest in together(star, 2, "auto"):
        assert (number, digest) == (bound, right)
    for answer in together(star, 2, "admm"):
        assert isinstance(answer, ModelError)
        assert "choose method='auto'" in str(answer)


def test_parts_are_no_models():
    part = bl.Model.shard(1, 2)
    x = part.variable("x", 2, lower=0, upper=1)
    part.add(Simplex(2), x)
    part.minimize(x.sum())
    for alone in (part.solve, part.linear_program, part.compile().decomposition):
        with pytest.raises(ModelError, match="the part that process 1 of 2 states"):
            alone()
    with pytest.raises(ModelError, match="compile alone"):
        bl.compile([part, part])
    with pytest.raises(ModelError, match=r"make the model by Model\.shard"):
        bl.Model().variable("x", 2, lower=0, upper=1, private=True)
    with pytest.raises(ModelError, match="numbered from 0"):
        bl.Model.shard(2, 2)
    with pytest.raises(OptionError, match="rank"):
        bl.Model.shard(-1, 2)


def boxes(world):
    """The bound where no block bounds a common variable, or only one process's does, and bounds cut blocks off."""
    rank = dist.get_rank()
    part = bl.Model.shard(rank, world)
    x = part.variable("x", 7, lower=-1, upper=torch.tensor([0.75, 0.75, 0.75, 0.75, 1, 2, 3]))
    own = part.variable("own", 2, lower=-2, upper=1, private=True)
    chosen = range(0, 4, 2)[rank::world]
    part.add(Simplex(2), x[torch.tensor([[i, i + 1] for i in chosen])])
    part.minimize(x @ torch.tensor([-2.0, -1, 1, -3, 1, -1, 0]) + own.sum() + 5)
    found = part.solve(backend="torch", mesh=True, tol=1e-9)
    return float(found.bound[0]), float(found.objective[0])


def test_variables_in_no_block_are_in_the_box_of_one_process():
    """By hand: at most 3/4 of a choice in the simplices; x4, x5, x6 and the two variables of each process at a bound."""
    simplices, free = 0.75 * -2 + 0.25 * -1 + 0.25 * 1 + 0.75 * -3, -1.0 - 2.0
    for world in (1, 2):
        for bound, objective in together(boxes, world, world):
            assert bound == pytest.approx(simplices + free - 4 * world + 5, abs=1e-6)
            assert objective == pytest.approx(bound, abs=1e-6)
