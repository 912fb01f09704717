"""Layers against the solver on the same energy, explicit matrices, finite differences and torch's habits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import image_crf, solve_densecrf
from blocklp.problems.densecrf.layers import METHODS, DenseCRFLayer


def batch(count: int = 2, labels: int = 3, height: int = 3, width: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    images = 255 * torch.rand(count, 3, height, width, generator=draw, dtype=torch.float64)
    return images, 2 * torch.randn(count, labels, height, width, generator=draw, dtype=torch.float64)


def layer(labels: int = 3, method: str = "mean-field", **options: object) -> DenseCRFLayer:
    given: dict[str, object] = {"smooth": (2.0, 1.0), "bilateral": (4.0, 60.0, 2.0), "steps": 3, "dtype": torch.float64, **options}
    return DenseCRFLayer(labels, method=method, **given)  # type: ignore[arg-type]


def points(values: Tensor) -> Tensor:
    """``(batch, channels, height, width)`` as ``(points, channels)``."""
    return values.movedim(1, 3).flatten(0, 2)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mean_field_of_the_same_energy(exact: bool, dtype: torch.dtype) -> None:
    images, logits = (t.to(dtype) for t in batch(2, 4, 9, 11))
    module = DenseCRFLayer(4, smooth=(3.0, 3.0), bilateral=(8.0, 40.0, 5.0), exact=exact, dtype=dtype)
    marginals = module(images, logits)
    assert marginals.dtype == dtype
    given = {"smooth": (3.0, 3.0), "bilateral": (8.0, 40.0, 5.0), "exact": exact}
    field = image_crf(list(images.movedim(1, 3)), [-u for u in logits.movedim(1, 3)], **given)  # type: ignore[arg-type]
    found = solve_densecrf(field, "mean-field", steps=5).y
    assert torch.equal(points(marginals).argmax(1), found.argmax(1))
    torch.testing.assert_close(points(marginals), found, rtol=0, atol=1e-10 if dtype == torch.float64 else 1e-4)


def test_a_trained_energy_can_be_solved_by_any_method() -> None:
    images, logits = batch(2, 3, 6, 5)
    module = layer(compatibility=torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]]))
    with torch.no_grad():
        field = module.energy(images, logits)
        found = solve_densecrf(field, "mean-field", steps=3).y
        torch.testing.assert_close(found, points(module(images, logits)), rtol=0, atol=1e-12)
        assert bool((solve_densecrf(field, "prox-lp").gap >= 0).all())


@pytest.mark.parametrize("method", ["efw", "l2fw"])
def test_frank_wolfe_by_its_formula(method: str) -> None:
    """One step from explicit matrices; the regularised linear problem by its optimality conditions."""
    images, logits = batch(1, 3)
    module = layer(method=method, steps=1, step=0.3, regularisation=1.7, exact=True)
    unary = -points(logits)
    start = (-unary).softmax(1)
    y, x = torch.meshgrid(torch.arange(3.0), torch.arange(4.0), indexing="ij")
    place = torch.stack([x, y], 2).flatten(0, 1).double()
    colour = points(images)
    apart = (place[:, None] - place).square().sum(2)
    costs = unary
    for weight, distance in ((1.0, apart / 4), (2.0, apart / 16 + (colour[:, None] - colour).square().sum(2) / 3600)):
        kernel = (-distance / 2).exp()
        inverse = kernel.sum(1).rsqrt()
        costs = costs + weight * (inverse[:, None] * kernel * inverse) @ start @ (1 - torch.eye(3, dtype=torch.float64))
    answer = (points(module(images, logits)) - 0.7 * start) / 0.3
    torch.testing.assert_close(answer.sum(1), torch.ones(12, dtype=torch.float64))
    # Where p > 0 the derivative of the regularised cost is the row's least.
    slope = costs + 1.7 * (answer.log() if method == "efw" else answer)
    least = slope.amin(1, keepdim=True)
    used = answer > 1e-12
    torch.testing.assert_close(torch.where(used, slope - least, 0.0), torch.zeros_like(slope), rtol=0, atol=1e-9)
    assert bool(used.all()) == (method == "efw")


def test_entropic_frank_wolfe_with_unit_numbers_is_mean_field() -> None:
    images, logits = batch()
    entropic = layer(method="efw", step=1.0, regularisation=1.0)
    torch.testing.assert_close(entropic(images, logits), layer()(images, logits), rtol=1e-12, atol=0)
    assert entropic.logit_step is not None and not entropic.logit_step.requires_grad


@pytest.mark.parametrize("method", ["efw", "l2fw", "fw"])
def test_frank_wolfe_of_the_solver(method: str) -> None:
    images, logits = batch(2, 3, 6, 5)
    weight: dict[str, object] = {} if method == "fw" else {"weight": 0.05}
    module = layer(method=method, steps=4, step=0.3, regularisation=weight.get("weight"))
    with torch.no_grad():
        field = module.energy(images, logits)
        options = {"step": "constant", "size": 0.3, "steps": 4} | weight
        found = solve_densecrf(field, method, start=(-field.unary).softmax(1), **options).y  # type: ignore[arg-type]
        torch.testing.assert_close(points(module(images, logits)), found, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("exact", [True, False])
def test_what_needs_gradients_changes_no_bit(method: str, dtype: torch.dtype, exact: bool) -> None:
    """Pixels on faces of the lattice's simplices, as those of whole colours are, are in one of them whatever is learned."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 8, (2, 3, 9, 11), generator=draw).to(dtype) * 32
    logits = torch.randn(2, 4, 9, 11, generator=draw, dtype=dtype)
    module = DenseCRFLayer(4, smooth=(3.0, 2.0), bilateral=(8.0, 32.0, 4.0), method=method, exact=exact, dtype=dtype)
    with torch.no_grad():
        truth = module(images, logits)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    assert torch.equal(module(images, logits), truth)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_()
        assert torch.equal(module(images, logits), truth), name
    found = module(images.requires_grad_(), logits.requires_grad_())
    assert torch.equal(found, truth) and found.requires_grad


@pytest.mark.parametrize("d", [1, 2, 5])
def test_gradients_of_the_lattice_s_weights_by_finite_differences(d: int) -> None:
    draw = torch.Generator().manual_seed(d)
    features = 5 * torch.rand(12, d, generator=draw, dtype=torch.float64)
    weigh = torch.rand(12, d + 1, generator=draw, dtype=torch.float64)
    moved = features.clone().requires_grad_()
    (found,) = torch.autograd.grad((Lattice.build(moved).weights * weigh).sum(), moved)
    step = 1e-6
    for a, i in torch.cartesian_prod(torch.arange(12), torch.arange(d)).view(-1, 2).tolist():
        ends = []
        for sign in (1, -1):
            there = features.clone()
            there[a, i] += sign * step
            ends.append(float((Lattice.build(there).weights * weigh).sum()))
        assert found[a, i].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-7)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_by_finite_differences(method: str, exact: bool, recompute: bool) -> None:
    """Of logits, images and every parameter.

    Pixels lie on the faces of the smoothness lattice whatever its width; where faces are crossed vertices appear, so that only the
    bilateral lattice, whose colours are in general position, has derivatives to compare with.
    """
    images, logits = batch(2, 3, 2, 3)
    module = layer(method=method, exact=exact, recompute=recompute, steps=2, **({} if exact else {"smooth": None}))
    names, values = zip(*module.named_parameters(), strict=True)

    def forward(images: Tensor, logits: Tensor, *given: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, dict(zip(names, given, strict=True)), (images, logits))
        return result

    inputs = [v.detach().clone().requires_grad_() for v in (images, logits, *values)]
    torch.autograd.gradcheck(forward, inputs, fast_mode=True)


def test_every_learned_parameter_gets_a_gradient() -> None:
    images, logits = batch()
    for method in METHODS:
        if method == "fw":  # whose kernels get none
            continue
        # Full steps of projections end in corners, which have no gradient, unless the weight is large.
        options = {"regularisation": 20.0} if method in ("prox-grad", "admm") else {}
        module = layer(method=method, **options)
        truth = torch.arange(24).view(2, 3, 4) % 3
        torch.nn.functional.nll_loss(module(images, logits).clamp(min=1e-6).log(), truth).backward()
        for name, parameter in module.named_parameters():
            assert (parameter.grad is None) == (name == "log_stretch"), name
            assert parameter.grad is None or bool(parameter.grad.any()), name
        # The gradient of the symmetric part is symmetric: steps keep it so.
        assert module.compatibility.grad is not None
        torch.testing.assert_close(module.compatibility.grad, module.compatibility.grad.T)


def test_recomputing_saves_memory_and_changes_nothing() -> None:
    images, logits = batch(2, 6, 12, 10)
    results, kept = [], []
    for recompute in (False, True):
        module = layer(6, steps=8, recompute=recompute)
        module.log_stretch.requires_grad_()
        seen: dict[int, int] = {}

        def pack(tensor: Tensor, seen: dict[int, int] = seen) -> Tensor:
            seen[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            marginals = module(images, logits)
        marginals.square().sum().backward()
        kept.append(sum(seen.values()))
        results.append((marginals, [p.grad for p in module.parameters()]))
    assert kept[1] < kept[0] / 2
    assert torch.equal(results[0][0], results[1][0])
    for one, other in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(one, other)


def test_lattices_are_built_once_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = Lattice.build

    def count(features: Tensor, image: Tensor | None = None) -> Lattice:
        built.append(len(features))
        return build(features, image)

    monkeypatch.setattr(Lattice, "build", count)
    module = layer(steps=4, recompute=True)
    module(*batch()).square().sum().backward()
    assert built == [24, 24]  # one for each kernel, for the images of the batch together


def test_images_of_one_batch_do_not_see_each_other() -> None:
    images, logits = batch(3, 3, 5, 6)
    for method in METHODS:
        module = layer(method=method)
        alone = torch.cat([module(images[k : k + 1], logits[k : k + 1]) for k in range(3)])
        torch.testing.assert_close(module(images, logits), alone, rtol=1e-12, atol=1e-14)


def test_torch_habits() -> None:
    images, logits = batch()
    module = layer(method="efw")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1)
    expected = module(images, logits)
    other = layer(method="efw", smooth=(5.0, 0.5), step=0.9)
    assert not torch.equal(other(images, logits), expected)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(images, logits), expected)
    assert torch.equal(copy.deepcopy(module)(images, logits), expected)
    assert torch.equal(module.eval()(images, logits), expected)
    narrow = module.to(torch.float32)(images.float(), logits.float())
    assert narrow.dtype == torch.float32 and narrow.is_contiguous()
    torch.testing.assert_close(narrow, expected.float(), rtol=0, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(images.float(), logits.float()), narrow)
    assert "method='efw', steps=3, smooth=(2.21, 1.11), bilateral=(4.42, 66.3, 2.21), step=0.525" in repr(module)
    with pytest.raises(RuntimeError, match="logit_step"):
        layer().load_state_dict(module.state_dict())


def test_same_on_a_device(device: torch.device) -> None:
    images, logits = batch()
    for method in METHODS:
        # Pixels lie on the faces of the smoothness lattice, where devices may round apart.
        module = layer(method=method, smooth=None)
        module.log_stretch.requires_grad_()
        moved = copy.deepcopy(module).to(device)
        here, there = module(images, logits), moved(images.to(device), logits.to(device))
        torch.testing.assert_close(there.cpu(), here)
        here.square().sum().backward()
        there.square().sum().backward()
        for one, other in zip(module.parameters(), moved.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None) and (one.grad is not None or method == "fw")
            if one.grad is not None and other.grad is not None:
                torch.testing.assert_close(other.grad.cpu(), one.grad)


def test_wrong_options_are_refused() -> None:
    for options, error, text in (
        ({"method": "newton"}, OptionError, "choose one of mean-field, efw, l2fw, fw, pgd, prox-grad, admm, or"),
        ({"labels": 1}, OptionError, "at least 2 labels"),
        ({"steps": 0}, OptionError, "1 step"),
        ({"smooth": None, "bilateral": None}, OptionError, "at least one"),
        ({"smooth": (3.0, 0.0)}, OptionError, "by None"),
        ({"step": 0.5}, OptionError, "'efw', which has both"),
        ({"method": "efw", "step": 1.5}, OptionError, "at most 1"),
        ({"method": "pgd", "step": [0.5, 0.5]}, OptionError, "or 3 of them"),
        ({"method": "admm", "step": 0.5}, OptionError, "admm has no step"),
        ({"method": "fw", "regularisation": 0.5}, OptionError, "fw has no regularisation"),
        ({"method": "l2fw", "regularisation": 0.0}, OptionError, "positive"),
        ({"compatibility": torch.zeros(2, 2)}, ShapeError, r"give \(3, 3\)"),
        ({"compatibility": torch.arange(9.0).view(3, 3)}, ModelError, "not symmetric"),
    ):
        with pytest.raises(error, match=text):
            layer(**options)  # type: ignore[arg-type]


def test_wrong_input_is_refused() -> None:
    images, logits = batch()
    module = layer()
    for one, other, error, text in (
        (images[0], logits[0], ShapeError, r"tensor\[None\]"),
        (images.movedim(1, 3), logits, ShapeError, r"permute\(0, 3, 1, 2\)"),
        (images, logits.movedim(1, 3), ShapeError, r"permute\(0, 3, 1, 2\)"),
        (images[:1], logits, ShapeError, "give images"),
        (images[:0], logits[:0], ShapeError, "give images"),
        (images, logits[:, :2], ShapeError, "2 labels for a layer of 3"),
        (images.byte(), logits, ShapeError, r"images\.float\(\)"),
        (images, logits.half(), ShapeError, r"logits\.float\(\)"),
        (images, torch.full_like(logits, torch.inf), NonFiniteError, "infinite"),
    ):
        with pytest.raises(error, match=text):
            module(one, other)


def test_training_raises_held_back_accuracy() -> None:
    pytest.importorskip("skimage")
    from blocklp.problems.densecrf.training_example import motorcycle, train

    known, held_back = motorcycle()
    module = DenseCRFLayer(known.logits.shape[1], method="l2fw")

    def accuracy() -> float:
        with torch.no_grad():
            return held_back.accuracy(module(held_back.images, held_back.logits))

    alone, untrained = held_back.accuracy(held_back.logits), accuracy()
    first = train(module, known, 1)
    assert train(module, known, 8) < first
    assert untrained > alone + 0.1
    assert accuracy() > untrained + 0.04
