"""The layer as a module: dtypes, shapes, transformations of torch.func, compiled networks, refusals."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.oracles import Knapsack, Simplex

from .models import TASKS, costs


def layer_of(name: str, **options: object) -> bl.Layer:
    task = TASKS[name]()
    return bl.Layer(task.model, cost=task.price, variables=task.x, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["prox", "lpgd", "perturbed", "identity"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes_go_in_and_out(mode: str, dtype: torch.dtype) -> None:
    layer = layer_of("matching", mode=mode)
    given = costs(TASKS["matching"](), 3).to(dtype).requires_grad_()
    found = layer(given)
    found.square().sum().backward()
    assert found.dtype == given.grad.dtype == dtype and given.grad.shape == given.shape


def test_single_precision_rounds_a_solve_in_double() -> None:
    layer, given = layer_of("matching"), costs(TASKS["matching"](), 3).float()
    assert torch.equal(layer(given), layer(given.double()).float())


def test_automatic_mixed_precision() -> None:
    layer, net = layer_of("path"), torch.nn.Linear(3, 7)
    features = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = net(features)
        found = layer(predicted)
        assert predicted.dtype == found.dtype == torch.bfloat16
        loss = found.float().square().sum()
    loss.backward()
    assert bool(net.weight.grad.isfinite().all()) and float(net.weight.grad.abs().max()) > 0


def test_one_instance_needs_no_batch() -> None:
    layer, given = layer_of("matching"), costs(TASKS["matching"](), 2)
    assert torch.equal(layer(given[1]), layer(given)[1])


def test_jacobians_by_torch_func() -> None:
    layer, given = layer_of("rows"), costs(TASKS["rows"](), 3)
    expected = torch.autograd.functional.jacobian(layer, given)
    torch.testing.assert_close(torch.func.jacrev(layer)(given), expected, atol=1e-12, rtol=0)
    each = torch.func.vmap(torch.func.jacrev(layer))(given)
    own = torch.stack([expected[i, :, i] for i in range(3)])
    torch.testing.assert_close(each, own, atol=1e-12, rtol=0)


def test_vmap_folds_the_mapped_dimension() -> None:
    layer, given = layer_of("matching"), costs(TASKS["matching"](), 6)
    folded = torch.func.vmap(layer, in_dims=1, out_dims=1)(given.view(2, 3, 3, 3))
    torch.testing.assert_close(folded.reshape(6, 3, 3), layer(given), atol=1e-14, rtol=0)
    grad = torch.func.vmap(torch.func.grad(lambda c: layer(c).square().sum()))(given)
    free = given.clone().requires_grad_()
    layer(free).square().sum().backward()
    torch.testing.assert_close(grad, free.grad, atol=1e-12, rtol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # read by the compiler
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_networks_around_a_layer_compile(backend: str) -> None:
    layer = layer_of("path")
    before, after = torch.nn.Linear(3, 7).double(), torch.nn.Linear(7, 2).double()
    features = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def network(x: Tensor) -> Tensor:
        return after(layer(before(x).relu())).square().sum()

    network(features).backward()
    expected = before.weight.grad.clone()
    before.zero_grad()
    torch._dynamo.reset()
    torch.compile(network, backend=backend)(features).backward()
    torch.testing.assert_close(before.weight.grad, expected)


def test_the_compiler_is_not_imported_for_a_layer() -> None:
    code = """
import sys, torch, blocklp as bl
from blocklp.oracles import Simplex
m = bl.Model()
x = m.variable("x", 2, lower=0, upper=1)
price = m.parameter("price", 2)
m.add(Simplex(2), scope=[x[[0]], x[[1]]])
m.minimize((price * x).sum())
c = torch.ones(1, 2, requires_grad=True)
bl.Layer(m, cost=price)(c).sum().backward()
print("torch._dynamo" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.split() == ["False"]


def test_no_second_derivatives() -> None:
    layer, given = layer_of("rows"), costs(TASKS["rows"](), 2).requires_grad_()
    [first] = torch.autograd.grad(layer(given).square().sum(), given, create_graph=True)
    with pytest.raises(ModelError, match="no second derivatives"):
        first.sum().backward()


def test_other_parts_of_the_objective_and_the_model_stay_in_force() -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    y = m.variable("y", 2, lower=-1, upper=1)
    price, fee = m.parameter("price", 3), m.parameter("fee", 2)
    load = m.add(Knapsack([[1.0, 1.0, 1.0]], [1.5]), scope=[x[[j]] for j in range(3)])
    m.maximize(2.0 * (price * x).sum() + (price * x[[2, 1, 0]]).sum() + (fee * y).sum() + 7.0)
    fee.value = [1.0, -1.0]
    layer = bl.Layer(m, cost=price, variables=x, mode="lpgd")
    given = torch.tensor([[4.0, 1.0, 0.0]], dtype=torch.float64)  # 8, 3, 4 for the three items
    assert layer(given).tolist() == [[1.0, 0.0, 0.5]]
    assert bl.losses.regret(layer, given, given, torch.tensor([8.0 + 2.0 + 2.0 + 7.0])).item() == 0.0
    m.replace(load, Knapsack([[1.0, 1.0, 1.0]], [2.0]))
    assert layer(given).tolist() == [[1.0, 0.0, 1.0]]
    free = given.clone().requires_grad_()
    bl.Layer(m, cost=price, variables=x, mode="identity")(free)[0, 0].backward()
    assert free.grad.tolist() == [[2.0, 0.0, 1.0]]
    both = bl.Layer(m, cost=price, variables=y, mode="identity")
    assert both(given).tolist() == [[1.0, -1.0]]
    fee.value = [-1.0, -1.0]
    assert both(given).tolist() == [[-1.0, -1.0]]
    m.add(Simplex(2), scope=[y[[0]], y[[1]]])
    with pytest.raises(ModelError, match="compile"):
        both(given)


def test_costs_of_no_dimension() -> None:
    m = bl.Model()
    x = m.variable("x", (), lower=-1, upper=2)
    price = m.parameter("price", ())
    m.minimize(price * x)
    layer = bl.Layer(m, cost=price)
    given = torch.tensor([0.5, -1.5, -7.0], dtype=torch.float64, requires_grad=True)
    found = layer(given)
    assert found.tolist() == [-0.5, 1.5, 2.0]
    found.sum().backward()
    assert given.grad.tolist() == [-1.0, -1.0, 0.0]


@pytest.mark.parametrize("mode", ["prox", "lpgd", "perturbed", "identity"])
@pytest.mark.parametrize("name", TASKS)
def test_empty_batches(name: str, mode: str) -> None:
    layer, given = layer_of(name, mode=mode), costs(TASKS[name](), 0).requires_grad_()
    found = layer(given)
    found.sum().backward()
    assert len(found) == 0 and given.grad.shape == given.shape


@pytest.mark.parametrize("mode", ["prox", "lpgd", "identity"])
@pytest.mark.parametrize("name", ["matching", "own"])
def test_inference_before_training(name: str, mode: str) -> None:
    layer, given, rows = layer_of(name, mode=mode), costs(TASKS[name](), 3), torch.arange(3)
    with torch.inference_mode():
        first = layer(given, rows)
        bl.losses.regret(layer, given, 2 * given, index=rows)
    free = given.clone().requires_grad_()
    found = layer(free, rows)
    found.sum().backward()
    torch.testing.assert_close(found.detach(), first.clone(), atol=1e-3 if name == "own" else 1e-9, rtol=0)
    with torch.inference_mode():
        layer(given, rows)


@pytest.mark.parametrize("name", ["matching", "rows", "simplex"])
def test_layers_are_copied_and_saved_with_networks(name: str, tmp_path: Path) -> None:
    network = torch.nn.Sequential(layer_of(name, rho=0.5), torch.nn.Flatten())
    given = costs(TASKS[name](), 3)
    network(given)
    torch.save(network, tmp_path / "network.pt")
    assert not network.state_dict()
    for other in (copy.deepcopy(network), torch.load(tmp_path / "network.pt", weights_only=False)):
        torch.testing.assert_close(other(given), network(given), atol=1e-12, rtol=0)
        assert repr(other) == repr(network)


def test_a_compiled_solver_serves_too() -> None:
    task = TASKS["rows"]()
    solver = task.model.compile()
    given = costs(task, 2)
    assert torch.equal(bl.Layer(solver, cost=task.price)(given), bl.Layer(task.model, cost=task.price)(given))


def test_exact_points_in_any_mode() -> None:
    given = costs(TASKS["matching"](), 5)
    expected = layer_of("matching", mode="identity")(given)
    for mode in ("prox", "perturbed", "lpgd"):
        layer = layer_of("matching", mode=mode)
        found = layer.exact(given.clone().requires_grad_(), torch.arange(5))
        assert torch.equal(found, expected) and not found.requires_grad


def test_a_layer_says_what_it_does() -> None:
    said = repr(layer_of("matching", rho=2.0))
    assert "[3, 3] costs 'price', minimize, ProximalTerm(rho=2.0)" in said


def test_wrong_models_are_named() -> None:
    task, other = TASKS["rows"](), TASKS["rows"]()
    with pytest.raises(ModelError, match="model is 3; give a model of one instance"):
        bl.Layer(3, cost=task.price)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="cost is 'price'; give the parameter"):
        bl.Layer(task.model, cost="price")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="which the objective does not hold; it holds price"):
        bl.Layer(task.model, cost=other.price)
    with pytest.raises(OptionError, match="of another model"):
        bl.Layer(task.model, cost=task.price, variables=other.x)
    with pytest.raises(OptionError, match="tol is 0; it must be a positive number"):
        bl.Layer(task.model, cost=task.price, tol=0)
    m = bl.Model(batch=2)
    x = m.variable("x", 2, lower=0, upper=1)
    price = m.parameter("price", 2)
    m.minimize((price * x).sum())
    with pytest.raises(ModelError, match="the model has 2 instances; a layer solves one for any number of costs"):
        bl.Layer(m, cost=price)
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    price = m.parameter("price", 2)
    m.minimize(x.sum())
    with pytest.raises(OptionError, match="it holds none: multiply variables by one"):
        bl.Layer(m, cost=price)


def test_wrong_costs_are_named() -> None:
    layer, given = layer_of("matching"), costs(TASKS["matching"](), 2)
    with pytest.raises(ShapeError, match=r"costs have shape \(1, 2, 9\); give \(batch, \*\(3, 3\)\)"):
        layer(given.view(1, 2, 9))
    with pytest.raises(ShapeError, match="costs is 'a'; give a tensor"):
        layer("a")
    with pytest.raises(ShapeError, match=r"costs are torch\.int64; give floating-point numbers"):
        layer(torch.ones(1, 3, 3, dtype=torch.long))
    wrong = given.clone()
    wrong[1, 2, 0] = torch.inf
    with pytest.raises(NonFiniteError, match=r"cost price\[2, 0\] of instance 1 is inf"):
        layer(wrong)
    for index in (torch.tensor([0]), torch.tensor([0.0, 1.0]), torch.tensor([-1, 0]), torch.tensor([True, False])):
        with pytest.raises(OptionError, match=r"give \(2,\) integers from 0 on"):
            layer(given, index)
    with pytest.raises(ShapeError, match="centre has 3 instances, costs 2"):
        layer(given, centre=torch.zeros(3, 3, 3))
    with pytest.raises(OptionError, match="centre is for mode 'prox'"):
        layer_of("matching", mode="identity")(given, centre=torch.zeros(3, 3))


@pytest.mark.parametrize("mode", ["prox", "lpgd", "perturbed", "identity"])
@pytest.mark.parametrize("name", ["simplex", "matching", "own_apart"])
def test_layers_on_a_device(name: str, mode: str, device: torch.device) -> None:
    task, found = TASKS[name](), []
    for where in (torch.device("cpu"), device):
        settings = {"generator": torch.Generator().manual_seed(0)} if mode == "perturbed" else {}
        solver = task.model.compile(device=where)
        layer = bl.Layer(solver, cost=task.price, variables=task.x, mode=mode, **settings)
        given = costs(task, 4).to(where).requires_grad_()
        for _ in range(2):
            points = layer(given, torch.arange(4))
        loss = bl.losses.spo_plus(layer, given, costs(task, 4, 1).to(where), index=torch.arange(4).to(where))
        (points.square().sum() + loss).backward()
        assert points.device.type == given.grad.device.type == where.type
        found.append((points.detach().cpu(), given.grad.cpu()))
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here, atol=1e-5, rtol=0)
