"""Matchings in folders of Parquet and Arrow files: what is written is read, whole and by ranges of sources."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from blocklp.errors import FormatError, ModelError, NonFiniteError, OptionError, ScopeError, TimeLimitError
from blocklp.problems.matching import Matching, MatchingPart, part_of, read_matching, read_matching_part, write_matching, write_shares
from blocklp.problems.matching.tables import MatchingTables

from .test_matching import random

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

NAMES = [field.name for field in fields(Matching) if field.name != "budgets"]


def files(seed: int) -> Matching:
    """One of :func:`random`, without what files have no place for."""
    d = random(seed, general=seed % 2 == 1)
    return Matching(**{name: getattr(d, name) for name in NAMES})


def by_source(d: Matching) -> dict[str, np.ndarray]:
    order = np.argsort(d.source, kind="stable")
    return {name: own[order] if len(own := getattr(d, name)) == d.edges else own for name in NAMES}


def same(d: Matching, wanted: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(getattr(d, name), wanted[name]) for name in NAMES)


def edges(d: Matching, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {name: getattr(d, name) for name in ("source", "destination", "value", "weight")} | more


def a_matching() -> Matching:
    return Matching([0, 0, 1], [0, 1, 0], [3.0, 1, 2], [1.0, 1, 1], [1.0, 1])


def test_what_is_written_is_read_sorted_by_source(tmp_path: Path) -> None:
    for seed in range(20):
        d = files(seed)
        if d.edges in (d.sources, d.destinations):  # by_source tells arrays of edges by their length
            continue
        write_matching(tmp_path / str(seed), d)
        assert same(read_matching(tmp_path / str(seed)), by_source(d)), seed


def test_parts_are_ranges_of_sources_of_about_the_same_number_of_edges(tmp_path: Path) -> None:
    d = Matching.random(3000, 40, 0.1, seed=3)
    shuffled = np.random.default_rng(0).permutation(d.edges)
    d = Matching(d.source[shuffled], d.destination[shuffled], d.value[shuffled], d.weight[shuffled], d.capacity)
    write_matching(tmp_path, d)
    for world in (1, 2, 5):
        parts = [read_matching_part(tmp_path, rank, world) for rank in range(world)]
        wanted = by_source(d)
        assert np.array_equal(np.concatenate([p.matching.source + p.first for p in parts]), wanted["source"])
        for name in ("destination", "value", "weight"):
            assert np.array_equal(np.concatenate([getattr(p.matching, name) for p in parts]), wanted[name])
        sizes = [p.matching.edges for p in parts]
        assert max(sizes) - min(sizes) <= 2 * np.bincount(d.source).max()
        for rank, part in enumerate(parts):  # arrays in memory are cut into parts of the same kind
            cut = part_of(d, rank, world)
            assert (np.diff(cut.matching.source) >= 0).all() and np.array_equal(cut.matching.capacity, d.capacity)
            assert abs(cut.matching.edges - part.matching.edges) <= 2 * np.bincount(d.source).max()


def test_limits_of_sources_are_those_of_the_part(tmp_path: Path) -> None:
    for seed in range(1, 30, 2):
        d = files(seed)
        write_matching(tmp_path / str(seed), d)
        for rank in range(2):
            try:
                part = read_matching_part(tmp_path / str(seed), rank, 2)
            except ModelError as error:  # of one source with most edges
                assert "take fewer processes" in str(error)
                continue
            stop = part.first + part.matching.sources
            for name in ("limit", "least"):
                assert np.array_equal(getattr(part.matching, name), getattr(d, name)[part.first : stop]), seed


def test_edges_may_be_in_many_files_of_either_format(tmp_path: Path) -> None:
    d = files(4)
    cut = d.edges // 2
    halves = [{name: own[part] for name, own in edges(d).items()} for part in (slice(cut), slice(cut, None))]
    for suffix, write in ((".parquet", parquet.write_table), (".arrow", feather.write_feather), (".feather", feather.write_feather)):
        folder = tmp_path / suffix[1:]
        (folder / "edges" / "day=2").mkdir(parents=True)
        write(pyarrow.table(halves[0]), folder / "edges" / f"a{suffix}")
        write(pyarrow.table(halves[1]), folder / "edges" / "day=2" / f"b{suffix}")
        (folder / "edges" / "_SUCCESS").write_text("")
        write(pyarrow.table({"capacity": d.capacity}), folder / f"destinations{suffix}")
        found, wanted = read_matching(folder), by_source(d)
        for name in edges(d):
            assert np.array_equal(getattr(found, name), wanted[name]), (suffix, name)


def test_sources_far_beyond_the_ranges_that_are_counted_are_dealt_out(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    source = np.sort(draw.integers(0, 10**7, 5000))
    d = Matching(source, draw.integers(0, 5, 5000), np.ones(5000), np.ones(5000), np.ones(5))
    write_matching(tmp_path, d)
    parts = [read_matching_part(tmp_path, rank, 3) for rank in range(3)]
    assert np.array_equal(np.concatenate([p.matching.source + p.first for p in parts]), source)
    assert max(p.matching.edges for p in parts) < 1.2 * 5000 / 3


@pytest.mark.parametrize(
    ("table", "columns", "error", "said"),
    [
        ("edges", {"weight": None}, FormatError, "edges lack weight"),
        ("edges", {"color": np.zeros(3)}, FormatError, "edges have color"),
        ("edges", {"source": np.array([0.0, 0, 1])}, FormatError, "edges.source is a column of double; give integers"),
        ("edges", {"value": ["a", "b", "c"]}, FormatError, "edges.value is a column of string; give numbers"),
        ("edges", {"value": [1.0, None, 2.0]}, FormatError, "1 values of edges.value are missing"),
        ("edges", {"value": np.array([1.0, np.nan, 2.0])}, NonFiniteError, "value holds nan at 1"),
        ("edges", {"source": np.array([0, -4, 1])}, ScopeError, "a source is -4"),
        ("edges", {"destination": np.array([0, 2, 1])}, ScopeError, "destination"),
        ("destinations", {"capacity": None, "floor": np.zeros(2)}, FormatError, "destinations lack capacity"),
        ("sources", {"limit": np.ones(1)}, FormatError, "sources has 1 rows, and edges name source 1"),
        ("sources", {"name": np.ones(2)}, FormatError, "sources have name; give limit or least"),
    ],
)
def test_wrong_tables_are_named(tmp_path: Path, table: str, columns: dict, error: type[Exception], said: str) -> None:
    d = a_matching()
    tables = {"edges": edges(d), "destinations": {"capacity": d.capacity}}
    tables[table] = {name: own for name, own in (tables.get(table, {}) | columns).items() if own is not None}
    for name, own in tables.items():
        parquet.write_table(pyarrow.table(own), tmp_path / f"{name}.parquet")
    with pytest.raises(error, match=said):
        read_matching(tmp_path)


def test_missing_and_damaged_files_and_limits_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="lacks edges; give edges"):
        read_matching(tmp_path)
    write_matching(tmp_path, a_matching())
    with pytest.raises(FormatError, match="raise max_bytes"):
        read_matching(tmp_path, max_bytes=20)
    with pytest.raises(TimeLimitError):
        read_matching(tmp_path, time_limit=1e-9)
    with pytest.raises(ModelError, match="process 1 of 3 has no edges"):
        [read_matching_part(tmp_path, rank, 3) for rank in range(3)]
    with pytest.raises(ModelError, match="rank is 2 and world 2"):
        read_matching_part(tmp_path, 2, 2)
    with pytest.raises(OptionError):
        read_matching_part(tmp_path, 0, 0)
    whole = (tmp_path / "edges.parquet").read_bytes()
    (tmp_path / "edges.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="pyarrow cannot read edges"):
        read_matching(tmp_path)
    feather.write_feather(pyarrow.table(edges(a_matching())), tmp_path / "edges.feather")
    with pytest.raises(FormatError, match="one format"):
        read_matching(tmp_path)


def test_shares_are_written_with_the_ends_of_their_edges(tmp_path: Path) -> None:
    d = Matching.random(200, 10, 0.3, seed=2)
    x, price = np.random.default_rng(0).random(d.edges), np.arange(10.0)
    write_matching(tmp_path / "matching", d)
    first = 0
    write_shares(tmp_path / "out", MatchingPart(d, 0), x, price)  # of another number of processes, before
    for rank in range(2):
        part = read_matching_part(tmp_path / "matching", rank, 2)
        write_shares(tmp_path / "out", part, x[first : first + part.matching.edges], price, rank, 2)
        first += part.matching.edges
    assert {path.name for path in (tmp_path / "out" / "shares").iterdir()} == {"0-of-2.parquet", "1-of-2.parquet"}
    table = parquet.read_table(tmp_path / "out" / "shares").to_pydict()
    assert np.array_equal(table["source"], d.source) and np.array_equal(table["destination"], d.destination)
    assert np.array_equal(table["x"], x)
    assert parquet.read_table(tmp_path / "out" / "prices.parquet")["price"].to_pylist() == price.tolist()


def test_only_row_groups_with_the_sources_are_read(tmp_path: Path) -> None:
    """Parquet keeps the least and the largest source of each row group."""
    d = Matching.random(3000, 40, 0.1, seed=3)
    write_matching(tmp_path, d)
    parquet.write_table(pyarrow.table(edges(d)), tmp_path / "edges.parquet", row_group_size=500)
    tables = MatchingTables(tmp_path)
    field = pyarrow.compute.field("source")
    fragment = next(tables.edges.get_fragments())
    assert len(fragment.split_by_row_group(filter=field < 100)) < len(fragment.split_by_row_group())
    assert tables.read(0, 100).edges == (d.source < 100).sum()
