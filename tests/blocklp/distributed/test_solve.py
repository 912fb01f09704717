"""Solves over processes: the same bits in all of them whatever their number, bounds that hold, limits that come alike."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

import blocklp as bl
from blocklp.distributed import Mesh
from blocklp.distributed.processes import Processes
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import AtMostOne
from blocklp.problems.mis import WeightedGraph, clique_model
from blocklp.problems.qpbo import Qubo, roof_duality_model

from .processes import alike, model, random_qubo, together, told

WORLDS = 1, 2, 3, 4


def stated(kind):
    """Models of the tests."""
    if kind == "qpbo":
        return model()
    if kind == "fixings":  # blocks have data of their own
        return model(30, 60, seed=1)
    random = np.random.default_rng(2)
    if kind == "matching":
        stated = bl.Model()
        x = stated.variable("x", (6, 5), lower=0, upper=1)
        stated.add(AtMostOne(5), x, name="source")
        stated.add(AtMostOne(6), x.T, name="destination")
        stated.maximize((torch.from_numpy(random.uniform(size=(6, 5))) * x).sum())
        return stated
    edges = np.unique(np.sort(random.integers(0, 40, (80, 2)), 1), axis=0)
    graph = WeightedGraph(random.uniform(0.5, 1.5, 40), edges[edges[:, 0] != edges[:, 1]])
    return clique_model(graph, "edges")  # has a repair hook, and maximises


def fixings():
    """Bounds that fix every third variable at 0."""
    return {"y": (0.0, torch.arange(30).remainder(3).sign().double())}


def solved(kind, backend, sums, options):
    """The solution of a model in this process."""
    bounds = fixings() if kind == "fixings" else None
    found = stated(kind).compile(backend=backend).solve(mesh=Mesh(sums=sums), bounds=bounds, **options)
    return told(found)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [("qpbo", "torch"), ("qpbo", "numba"), ("fixings", "torch"), ("independent set", "torch"), ("matching", "torch")],
)
def test_bits_do_not_depend_on_the_number_of_processes(kind, backend):
    worlds = WORLDS if (kind, backend) == ("qpbo", "torch") else (1, 3)
    found = [alike(together(solved, world, kind, backend, "fixed", {"tol": 1e-5})) for world in worlds]
    assert len({answer["hash"] for answer in found}) == 1
    assert found[0]["status"] is bl.Status.OPTIMAL
    assert len({answer["primal"] for answer in found}) == 1
    if kind == "fixings":
        alone = stated(kind).compile(backend="torch").solve(bounds=fixings(), tol=1e-5)
        assert found[0]["bound"] == pytest.approx(float(alone.bound[0]), rel=2e-5)
        assert found[0]["bound"] <= found[0]["primal"] + 1e-9
        return
    best = float(reference(stated(kind)).objective[0])
    sign = -1 if kind in ("independent set", "matching") else 1
    assert sign * found[0]["bound"] <= sign * best + 1e-9 * abs(best)
    assert sign * found[0]["safe"] <= sign * best
    assert found[0]["bound"] == pytest.approx(best, rel=2e-5)
    assert sign * found[0]["primal"] >= sign * best - 1e-9 * abs(best)
    state = {name: torch.from_numpy(own) for name, own in found[0]["state"].items()}
    proved = bl.verify_certificate(stated(kind), state)
    assert float(proved.bound[0]) == pytest.approx(found[0]["bound"], rel=1e-9)


def test_multipliers_and_points_are_those_of_the_whole_model():
    found = alike(together(solved, 3, "qpbo", "torch", "fixed", {"tol": 1e-6}))
    qubo = random_qubo(60, 150)
    x = found["x"][0]
    y, z = x[: qubo.n], x[qubo.n :]
    value = qubo.linear @ y + qubo.quadratic @ z + qubo.offset
    assert value == pytest.approx(found["primal"], rel=1e-12)
    first, second = qubo.edges.T
    assert (z <= np.minimum(y[first], y[second]) + 1e-6).all()
    assert (z >= np.maximum(y[first] + y[second] - 1, 0) - 1e-6).all()
    alone = model().compile(backend="torch").solve(method="admm", tol=1e-6)
    assert {name: own.shape for name, own in found["state"].items()} == {
        name: tuple(own.shape) for name, own in alone.state.duals.items()
    }
    assert found["bound"] == pytest.approx(float(alone.bound[0]), rel=2e-6)


def test_floating_point_sums_come_near():
    fixed = alike(together(solved, 2, "qpbo", "torch", "fixed", {"tol": 1e-5}))
    for world in (2, 3):
        found = alike(together(solved, world, "qpbo", "torch", "float", {"tol": 1e-5}))
        assert found["bound"] == pytest.approx(fixed["bound"], rel=1e-9)
        assert found["hash"] != fixed["hash"]


def in_single_precision():
    """The solution with iterates in single precision."""
    return told(model().compile(dtype=torch.float32, backend="torch").solve(mesh=True, tol=1e-4))


def test_single_precision_has_the_same_bits_too():
    found = [alike(together(in_single_precision, world)) for world in (1, 3)]
    assert found[0]["hash"] == found[1]["hash"]


def test_pass_limits_and_patience_end_all_processes_alike():
    options = {"tol": 0.0, "passes": 37, "check_every": 5}
    limited = alike(together(solved, 3, "qpbo", "torch", "fixed", options))
    alone = model().compile(backend="torch").solve(method="admm", **options)
    assert (limited["status"], limited["passes"]) == (bl.Status.PASS_LIMIT, int(alone.passes[0]))
    cut = alike(together(solved, 2, "qpbo", "torch", "fixed", {"tol": 0.0, "cutoff": -1e3}))
    assert cut["status"] is bl.Status.CUTOFF


def late(seconds):
    """A solve that cannot end before its time limit, of processes of which the last one began long ago."""
    deadline = bl.Deadline(seconds)
    deadline.began -= 0.2 * dist.get_rank()
    options = {"tol": 0.0, "passes": 10**6, "patience": 10**6, "time_limit": deadline}
    return told(model().compile(backend="torch").solve(mesh=True, **options))


def test_time_limits_end_all_processes_at_the_same_pass():
    found = alike(together(late, 3, 1.5))
    assert found["status"] is bl.Status.TIME_LIMIT
    assert found["passes"] < 10**6


def test_time_that_was_over_before_ends_all_processes():
    found = alike_but_for_seconds(together(late, 2, 0.1))
    assert found["status"] is bl.Status.TIME_LIMIT


def alike_but_for_seconds(answers):
    """As :func:`alike`, of solves that nobody timed."""
    return alike([answer | {"seconds": 0.0} for answer in answers])


def again():
    """A solve from the solution of another one."""
    solver = model().compile(backend="torch")
    before = solver.solve(mesh=True, tol=1e-2)
    return told(solver.solve(mesh=True, tol=1e-6, warm_start=before)) | {"before": int(before.passes[0])}


def test_warm_starts_have_the_same_bits():
    found = [alike(together(again, world)) for world in (1, 3)]
    assert found[0]["hash"] == found[1]["hash"]
    assert found[0]["status"] is bl.Status.OPTIMAL


def stopped():
    """A solve that the callback of the first process stops at its second check, and how many events there were."""
    events = []

    def callback(event):
        events.append(event)
        return len(events) == 2

    found = model().compile(backend="torch").solve(mesh=True, tol=0.0, callback=callback, history=True)
    return told(found) | {"events": len(events), "history": len(found.history)}


def test_the_callback_of_the_first_process_stops_all():
    answers = together(stopped, 3)
    assert alike_but_for_seconds(answers)["status"] is bl.Status.INTERRUPTED
    assert [answer["events"] for answer in answers] == [2, 0, 0]
    assert [answer["history"] for answer in answers] == [2, 2, 2]


def on_mesh():
    """A solve on a mesh of devices, and one in half of the processes."""
    mesh = torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("blocks",))
    whole = told(model().compile(backend="torch").solve(mesh=mesh, tol=1e-4))
    groups = [dist.new_group([rank]) for rank in range(2)]
    own = told(model().compile(backend="torch").solve(mesh=groups[dist.get_rank()], tol=1e-4))
    return whole | {"own": own["hash"]}


def test_meshes_and_groups_of_some_processes():
    answers = together(on_mesh, 2)
    assert alike(answers)["status"] is bl.Status.OPTIMAL
    assert {answer["own"] for answer in answers} == {answers[0]["hash"]}


def on_grid(passes):
    """A solve of a square grid, and what its last pass did in turn: points of blocks, messages begun, and waits."""
    from blocklp.distributed import numba_sums
    from blocklp.kernels import numba_instances

    side, done = 150, []
    node = torch.arange(side * side).view(side, side)
    pairs = torch.cat([torch.stack([node[:, :-1], node[:, 1:]], -1).view(-1, 2), torch.stack([node[:-1], node[1:]], -1).view(-1, 2)])
    random = np.random.default_rng(0)
    pairs = pairs[pairs[:, 0].argsort(stable=True)].numpy()
    qubo = Qubo.from_terms(random.normal(size=side * side), pairs, random.normal(size=len(pairs)))
    solver = roof_duality_model(qubo).compile(backend="numba")
    with pytest.MonkeyPatch.context() as patch:
        begin, points = Processes.begin_sum, numba_instances.tile_points

        def begun(self, values):
            done.append(("sent", values.numel()))
            finish = begin(self, values)
            return lambda: (done.append(("waited", values.numel())), finish())[1]

        patch.setattr(Processes, "begin_sum", begun)
        patch.setattr(numba_sums, "tile_points", lambda *given: (done.append(("points", len(given[-1]))), points(*given))[1])
        found = solver.solve(mesh=True, tol=0.0, passes=passes)
    last = max((k for k, (what, _) in enumerate(done) if what == "points"), default=0)  # one process sends nothing
    return told(found) | {"done": done[last - 2 : last + 4]}


def test_sums_are_sent_before_blocks_that_share_nothing_with_other_processes():
    pytest.importorskip("numba", reason="loops that numba compiles overlap with messages")
    alone, answers = together(on_grid, 1, 40)[0], together(on_grid, 2, 40)
    assert alike_but_for_seconds(answers)["hash"] == alone["hash"]
    for answer in answers:
        (first, few), begun, (then, many), marks, waited, agreed = answer["done"]
        assert (first, then) == ("points", "points") and 0 < few < 64 < many
        assert begun[0] == "sent" and 100 < begun[1] < 2000 and waited == ("waited", begun[1])
        assert marks == ("sent", 2) and agreed == ("waited", 2)
