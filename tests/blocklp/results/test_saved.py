"""Solutions and states in files and as arrays: nothing is lost, and no file harms."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy.sparse import csr_array

import blocklp as bl
from blocklp.errors import FormatError, ModelError
from blocklp.oracles import Simplex


def model(batch: int = 2, seed: int = 0) -> bl.Model:
    rng = np.random.default_rng(seed)
    m = bl.Model(batch)
    x = m.variable("x/../y", (3, 4), lower=0, upper=1)
    m.add(Simplex(4), x, name="pick")
    m.add(csr_array(rng.random((3, 12))) @ x.reshape(12) <= rng.uniform(2, 3, (batch, 3)), name="cäp 1")
    m.add(x.reshape(12).sum() >= 1, name="file")
    m.maximize((torch.as_tensor(rng.random((batch, 3, 4))) * x).sum() - 1)
    return m


def same(a: bl.State, b: bl.State) -> bool:
    pairs = [(a.eta, b.eta), *((a.duals[k], b.duals[k]) for k in a.duals)]
    if a.saddle is not None and b.saddle is not None:
        pairs += [(a.saddle.x, b.saddle.x), (a.saddle.weight, b.saddle.weight)]
        pairs += [(a.saddle.rows[k], b.saddle.rows[k]) for k in a.saddle.rows]
    fits = list(a.duals) == list(b.duals) and a.rows == b.rows and (a.saddle is None) == (b.saddle is None)
    return fits and all(torch.equal(torch.nan_to_num(u), torch.nan_to_num(v)) and u.dtype == v.dtype for u, v in pairs)


def test_a_loaded_state_starts_a_solve_to_the_same_bits(tmp_path: Path) -> None:
    m = model()
    first = m.solve(passes=40, tol=0)
    for thing, name in ((first.state, "state"), (first, "solution.file")):
        thing.save(tmp_path / name)
        loaded = bl.State.load(tmp_path / name)
        assert same(loaded, first.state)
        a, b = (m.solve(passes=300, tol=0, warm_start=start) for start in (first.state, loaded))
        assert torch.equal(a.bound, b.bound) and torch.equal(a.raw_x, b.raw_x) and same(a.state, b.state)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["solution.file", "state"]


def test_a_loaded_solution_answers_as_the_one_saved(tmp_path: Path) -> None:
    m = model()
    found = m.solve(tol=1e-6)
    for kept in (found, found.instance(1)):
        kept.save(tmp_path / "kept")
        back = bl.Solution.load(tmp_path / "kept", m)
        x = m.variables["x/../y"]
        assert back.status == kept.status and back.numbers == kept.numbers and repr(back) == repr(kept)
        weighted = (x * torch.arange(24).reshape(2, 3, 4)).sum()
        pairs = zip(
            *((s[x], s.price("cäp 1"), s.slack("file"), s.reduced_cost(x), s.gap, s[weighted]) for s in (back, kept)), strict=True
        )
        assert all(torch.equal(a, b) for a, b in pairs)
        assert bl.verify_certificate(m, found.state).proves(found.safe_bound).all()
    with pytest.raises(bl.errors.InstanceError, match="out of range"):
        bl.Solution.load(tmp_path / "kept", model(batch=1))
    smaller = model()
    smaller.remove("file")
    with pytest.raises(ModelError, match="a solution of rows"):
        bl.Solution.load(tmp_path / "kept", smaller)
    wider = model()
    wider.variable("z", lower=0, upper=1)
    with pytest.raises(ModelError, match="in the variables"):
        bl.Solution.load(tmp_path / "kept", wider)


def test_arrays_of_numpy_are_copies_of_what_is_known() -> None:
    m = model()
    found = m.solve(tol=1e-6)
    arrays = found.to_numpy()
    assert arrays["status"] == ["optimal", "optimal"] and arrays["bound"].tolist() == found.bound.tolist()
    assert arrays["x"]["x/../y"].shape == (2, 3, 4) and arrays["price"]["cäp 1"].shape == (2, 3)
    assert set(arrays["duals"]) >= {"pick"} and set(arrays["slack"]) == {"cäp 1", "file"}
    assert arrays["reduced_cost"]["x/../y"].tolist() == found.reduced_cost("x/../y").tolist()
    before = found.bound.clone(), found.duals["pick"].clone()
    arrays["bound"][:], arrays["duals"]["pick"][:] = 7, 7
    assert torch.equal(found.bound, before[0]) and torch.equal(found.duals["pick"], before[1])


def test_solutions_of_several_models_come_back(tmp_path: Path) -> None:
    models = []
    for n in (2, 3):
        m = bl.Model()
        x = m.variable("x", n, lower=0, upper=1)
        m.add(Simplex(n), x)
        m.minimize(x[0] - x[1])
        models.append(m)
    solver = bl.compile(models)
    found = solver.solve()
    found.save(tmp_path / "both")
    back = bl.Solution.load(tmp_path / "both", solver)
    for i in (0, 1):
        assert torch.equal(back.instance(i)[models[i].variables["x"]], found.instance(i).x["x"])
        assert same(back.instance(i).state, found.instance(i).state)


def test_damaged_and_hostile_files_raise_errors_of_ours(tmp_path: Path) -> None:
    m = model()
    found = m.solve(passes=20)
    path = tmp_path / "found"
    found.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(300):
        data = bytearray(whole)
        if trial % 3 == 0:
            data = data[: int(rng.integers(len(data)))]
        else:
            for place in rng.integers(0, len(data), int(rng.integers(1, 4))):
                data[place] = int(rng.integers(256))
        path.write_bytes(bytes(data))
        for load in (bl.State.load, lambda p: bl.Solution.load(p, m)):
            try:
                load(path)
            except FormatError as error:
                refused += 1
                assert str(path) in str(error)
            except ModelError:
                pass
    assert refused > 590  # a byte may be drawn that was there
    with path.open("wb") as file:
        np.savez(file, eta=np.array([{"code": 1}], dtype=object))
    with pytest.raises(FormatError, match="cannot be read"):
        bl.State.load(path)
    save_file({"eta": np.ones(2)}, path)
    with pytest.raises(FormatError, match="holds None of version None"):
        bl.State.load(path)
    save_file({"eta": np.ones(2)}, path, {"blocklp": json.dumps({"kind": "state", "version": 2})})
    with pytest.raises(FormatError, match="damaged"):
        bl.State.load(path)
    found.state.save(path)
    with pytest.raises(FormatError, match=r"holds 'state' of version 2; give a file that save.. wrote for a solution"):
        bl.Solution.load(path, m)
    with pytest.raises(FileNotFoundError):
        bl.State.load(tmp_path / "nothing")
