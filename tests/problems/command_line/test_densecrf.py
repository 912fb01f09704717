"""The commands densecrf and stereo, and what they stand on: superpixels, matching costs, pictures."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError, TimeLimitError
from blocklp.problems.command_line.app import app
from blocklp.problems.command_line.densecrf import _lighter
from blocklp.problems.densecrf import Result, image_crf, pictures, readers, solve_densecrf
from blocklp.problems.densecrf import run as densecrf_run
from blocklp.problems.densecrf.mean_field import mean_field_update
from blocklp.problems.densecrf.mean_shift import _climb, mean_shift_regions
from blocklp.problems.densecrf.stereo import bad_pixels, matching_costs, stereo_crf, truncated_linear
from blocklp.problems.densecrf.superpixels import region_cliques, superpixel_cliques, superpixels
from blocklp.status import Status

from .running import refused, run

HEIGHT, WIDTH = 12, 16


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A picture of two halves and noise, and costs, scribbles and probabilities of it."""
    draw = np.random.default_rng(0)
    right = np.arange(WIDTH) >= WIDTH // 2
    image = np.clip(np.where(right[:, None], 180, 60) + draw.normal(0, 10, (HEIGHT, WIDTH, 3)), 0, 255).astype(np.uint8)
    costs = np.stack([right + 0.0, 1.0 - right], 1) + draw.normal(0, 0.6, (HEIGHT, WIDTH, 2))
    marks = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    marks[:, 1:6], marks[:, 11:14] = (0, 0, 255), (0, 255, 0)
    chance = np.where(right, 200, 60) + np.zeros((HEIGHT, 1))
    for name, pixels in (("image", image), ("marks", marks), ("chance", chance.astype(np.uint8))):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    np.save(tmp_path / "u.npy", costs)
    return {name: tmp_path / f"{name}.png" for name in ("image", "marks", "chance", "out")} | {"u": tmp_path / "u.npy"}


def halves() -> Tensor:
    return (torch.arange(WIDTH) >= WIDTH // 2).long().expand(HEIGHT, WIDTH)


def test_json_is_what_the_solver_finds(files: dict[str, Path]) -> None:
    shown = run("densecrf", files["image"], "--unary", files["u"], "--set", "outer=2", "--json", "--out", files["out"])
    entry = json.loads(shown.stdout)
    image = readers.read_image(files["image"])
    truth = solve_densecrf(image_crf(image, readers.read_unary(files["u"], (HEIGHT, WIDTH))), "prox-lp", outer=2)
    assert (entry["height"], entry["width"], entry["labels"], entry["method"]) == (HEIGHT, WIDTH, 2, "prox-lp")
    assert (entry["energy"], entry["bound"], entry["gap"]) == (truth.energy.item(), truth.bound.item(), truth.gap.item())
    assert (entry["best_energy"], entry["best_gap"]) == (truth.best_energy.item(), truth.best_gap.item())
    assert (entry["best_source"], entry["filter_calls"]) == (truth.best_source[0], truth.filter_calls)
    assert entry["version"] == bl.__version__ and entry["seconds"] > 0
    assert entry["steps"] == 2 == len(entry["history"]["energy"]) == len(entry["history"]["bound"])
    assert entry["pixels"] == torch.bincount(truth.labelling, minlength=2).tolist()
    assert entry["best_pixels"] == torch.bincount(truth.best_labelling, minlength=2).tolist()
    written = np.asarray(Image.open(files["out"]))
    assert written.dtype == np.uint8 and np.array_equal(written, truth.labelling.view(HEIGHT, WIDTH).numpy())


@pytest.mark.parametrize(("option", "file"), [("--unary", "u"), ("--scribbles", "marks"), ("--probability", "chance")])
def test_every_source_of_costs_finds_the_halves(files: dict[str, Path], option: str, file: str) -> None:
    shown = run(
        "densecrf",
        files["image"],
        option,
        files[file],
        "--method",
        "mean-field",
        "--smooth",
        1,
        1,
        "--bilateral",
        10,
        30,
        2,
        "--out",
        files["out"],
    )
    assert shown.stderr == ""
    assert "energy" in shown.stdout and "gap" in shown.stdout and "mean-field: 5 steps" in shown.stdout
    found = torch.from_numpy(np.asarray(Image.open(files["out"])).astype(np.int64))
    # The colours in their order, red + 256 green + 65536 blue: green first, which marks the right half.
    assert torch.equal(found, 1 - halves() if file == "marks" else halves())


def test_kernels_are_those_of_the_options(files: dict[str, Path]) -> None:
    image, unary = readers.read_image(files["image"]), readers.read_unary(files["u"], (HEIGHT, WIDTH))
    given = ("densecrf", files["image"], "--unary", files["u"], "--method", "mean-field", "--json")
    shown = json.loads(run(*given, "--smooth", 2, 1.5, "--bilateral", 1, 1, 0, "--no-normalise").stdout)
    crf = image_crf(image, unary, smooth=(2.0, 1.5), bilateral=None, normalise=False)
    assert shown["energy"] == solve_densecrf(crf, "mean-field").energy.item()
    alone = json.loads(run(*given, "--smooth", 1, 0, "--bilateral", 1, 1, 0).stdout)
    assert alone["energy"] == pytest.approx(unary.amin(2).sum().item())
    assert alone["gap"] == pytest.approx(0, abs=1e-9)


def test_a_method_s_labels_are_written_and_the_best_beside_them(files: dict[str, Path], tmp_path: Path) -> None:
    """Of noise one label everywhere is best; mean field's labels are written all the same."""
    best = tmp_path / "best.png"
    np.save(files["u"], 2 * np.random.default_rng(5).random((HEIGHT, WIDTH, 4)))
    kernels = ("--smooth", 2, 0.6, "--bilateral", 4, 300, 1.2, "--method", "mean-field")
    shown = run("densecrf", files["image"], "--unary", files["u"], *kernels, "--out", files["out"], "--best", best, "--json")
    image, unary = readers.read_image(files["image"]), readers.read_unary(files["u"], (HEIGHT, WIDTH))
    crf = image_crf(image, unary, smooth=(2.0, 0.6), bilateral=(4.0, 300.0, 1.2))
    q = (-crf.unary).softmax(1)
    for _ in range(5):
        q = mean_field_update(crf, q)
    entry = json.loads(shown.stdout)
    own, least = (torch.from_numpy(np.asarray(Image.open(f)).astype(np.int64)) for f in (files["out"], best))
    assert torch.equal(own.flatten(), q.argmax(1)) and len(own.unique()) > 1 == len(least.unique())
    assert entry["best_source"] == "constant" and entry["best_energy"] < entry["energy"]
    assert entry["energy"] == pytest.approx(crf.energy(own.flatten()).item())
    assert entry["best_energy"] == pytest.approx(crf.energy(least.flatten()).item())


def test_files_have_a_limit_that_an_option_raises(files: dict[str, Path]) -> None:
    given = ("densecrf", files["image"], "--unary", files["u"], "--set", "outer=1")
    assert "--max-bytes" in refused(*given, "--max-bytes", 3000) and "16 x 12" in refused(*given, "--max-bytes", 3000)
    run(*given, "--max-bytes", 20000)


def test_superpixels_add_cliques(files: dict[str, Path]) -> None:
    given = ("densecrf", files["image"], "--unary", files["u"], "--method", "mean-field", "--json")
    shown = json.loads(run(*given, "--superpixels", 8, 5, 1000).stdout)
    cliques = superpixel_cliques(readers.read_image(files["image"]), 5.0, 1000.0, 8)
    assert shown["cliques"] == len(cliques.cost) > 1
    both = json.loads(run(*given, "--superpixels", 8, 5, 1000, "--mean-shift", 4, 5, 1000).stdout)
    assert both["cliques"] > len(cliques.cost) and both["energy"] >= both["bound"]
    assert "cliques" not in json.loads(run(*given).stdout)


def test_a_rounding_is_offered(files: dict[str, Path]) -> None:
    from blocklp.problems.command_line.densecrf import Rounding
    from blocklp.problems.densecrf import ROUNDINGS

    assert get_args(Rounding) == tuple(ROUNDINGS)
    given = ("densecrf", files["image"], "--unary", files["u"], "--method", "qp-cvx", "--set", "steps=2", "--json")
    plain, other = (json.loads(run(*given, "--rounding", name).stdout) for name in ("argmax", "expansion"))
    assert other["best_energy"] <= plain["best_energy"] and other["energy"] == plain["energy"]


def test_pictures_are_written(files: dict[str, Path], tmp_path: Path) -> None:
    overlay, trace = tmp_path / "overlay.png", tmp_path / "trace.pdf"
    run("densecrf", files["image"], "--unary", files["u"], "--set", "outer=2", "--overlay", overlay, "--plot", trace)
    assert np.asarray(Image.open(overlay)).std() > 10
    assert trace.read_bytes().startswith(b"%PDF")


def test_the_lp_of_a_small_picture_by_another_solver(files: dict[str, Path], tmp_path: Path) -> None:
    """With two labels it is the least energy of all labellings."""
    draw = np.random.default_rng(1)
    Image.fromarray(draw.integers(0, 255, (3, 3, 3)).astype(np.uint8)).save(tmp_path / "small.png")
    np.save(tmp_path / "small.npy", draw.normal(0, 3, (3, 3, 2)))
    given = (tmp_path / "small.png", "--unary", tmp_path / "small.npy", "--smooth", 2, 0.5, "--bilateral", 3, 100, 1)
    entry = json.loads(run("densecrf", *given, "--reference", "highs", "--json").stdout)
    crf = image_crf(readers.read_image(given[0]), readers.read_unary(given[2], (3, 3)), smooth=(2, 0.5), bilateral=(3, 100, 1))
    best = min(crf.energy(torch.tensor(x)).item() for x in itertools.product(range(2), repeat=9))
    assert entry["reference"]["solver"] == "highs" and entry["reference"]["status"] == "optimal"
    assert entry["reference"]["value"] == pytest.approx(best, rel=1e-6) and entry["bound"] <= best
    assert f"LP by highs: optimal, {best:.5f}"[:-1] in run("densecrf", *given, "--reference", "highs").stdout
    monster = ("densecrf", files["image"], "--unary", files["u"], "--reference")
    assert "unknown solver 'abacus'" in refused(*monster, "abacus")


def test_wrong_input_is_one_line(files: dict[str, Path], tmp_path: Path) -> None:
    image, unary = files["image"], ("--unary", files["u"])
    assert "give one of --unary" in refused("densecrf", image)
    assert "--unary and --scribbles are given" in refused("densecrf", image, *unary, "--scribbles", files["marks"])
    assert "choose one of" in refused("densecrf", image, *unary, "--method", "magic")
    assert "it takes weight, outer, inner, levels" in refused("densecrf", image, *unary, "--set", "lambda=3")
    assert "outer 0" in refused("densecrf", image, *unary, "--set", "outer=0")
    assert "none.png" in refused("densecrf", tmp_path / "none.png", *unary)
    assert "u.npy" in refused("densecrf", files["u"], *unary)
    assert ".png" in refused("densecrf", image, *unary, "--out", tmp_path / "labels.jpg")
    assert "create it first" in refused("densecrf", image, *unary, "--out", tmp_path / "none" / "labels.png")
    assert "suffix" in refused("densecrf", image, *unary, "--plot", tmp_path / "trace.xyz")
    assert "time_limit" in refused("densecrf", image, *unary, "--time-limit", 0)
    assert "overflow" in refused("densecrf", image, *unary, "--smooth", 3, 1e300)
    assert "overflow" in refused("densecrf", image, *unary, "--bilateral", 3, 3, 1e300)
    assert "192 pixels" in refused("densecrf", image, *unary, "--superpixels", 10**23, 1, 1)
    assert "--gt-prob is given" in refused("densecrf", image, *unary, "--gt-prob", 0.5)
    assert "--probabilities is given" in refused("densecrf", image, "--probability", files["chance"], "--probabilities")
    np.save(tmp_path / "p.npy", np.full((HEIGHT, WIDTH, 2), 0.5))
    assert "--probabilities" in refused("densecrf", image, "--unary", tmp_path / "p.npy")
    run("densecrf", image, "--unary", tmp_path / "p.npy", "--probabilities", "--method", "mean-field")


def test_exit_codes_of_what_stops_early(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("densecrf", files["image"], "--unary", files["u"], "--json")
    late = CliRunner().invoke(app, [str(a) for a in (*given, "--time-limit", 1e-9)])
    assert late.exit_code != 0 and late.stdout == "" and "time limit of 1e-09 s was reached while reading" in late.stderr

    def passed(*_: Any) -> None:
        raise TimeLimitError("")

    with monkeypatch.context() as patch:
        patch.setattr(densecrf_run.Run, "bounded", passed)
        assert json.loads(run(*given, code=1).stdout)["status"] == "time_limit"

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(densecrf_run.Run, "bounded", interrupt)
    entry = json.loads(run(*given, code=130).stdout)
    assert entry["status"] == "interrupted" and entry["bound"] <= entry["best_energy"] <= entry["energy"]


def pair(shift: int, colours: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Texture; a square in the middle of the left image is nearer by ``shift`` than the rest, which is at disparity 1."""
    draw = torch.Generator().manual_seed(0)
    far, near = (torch.randint(0, 256, (20, 40, colours), generator=draw).double() for _ in range(2))
    truth = torch.ones(20, 40, dtype=torch.int64)
    truth[5:15, 15:25] = 1 + shift
    left, right = torch.empty_like(far), torch.empty_like(far)
    y, x = torch.meshgrid(torch.arange(20), torch.arange(40), indexing="ij")
    left[:] = torch.where((truth > 1)[:, :, None], near[y, x], far[y, x])
    right[:, :] = far[y, (x + 1) % 40]
    square = slice(15 - 1 - shift, 25 - 1 - shift)
    right[5:15, square] = near[5:15, 15:25]
    return left, right, truth


def test_stereo_finds_a_square_in_front(tmp_path: Path) -> None:
    left, right, truth = pair(3)
    for name, pixels in (("left", left), ("right", right), ("truth", truth * 20)):
        Image.fromarray(pixels.numpy().astype(np.uint8)).save(tmp_path / f"{name}.png")
    given = ("stereo", tmp_path / "left.png", tmp_path / "right.png", "--disparities", 6)
    shown = run(
        *given,
        "--truth",
        tmp_path / "truth.png",
        "--scale",
        20,
        "--json",
        "--out",
        tmp_path / "d.png",
        "--overlay",
        tmp_path / "o.png",
    )
    entry = json.loads(shown.stdout)
    found = torch.from_numpy(np.asarray(Image.open(tmp_path / "d.png")).astype(np.int64))
    assert set(found.unique().tolist()) <= {20 * d for d in range(6)}
    assert entry["bad_pixels"] == pytest.approx(float(((found / 20 - truth).abs() > 1).double().mean()))
    # Columns whose match is outside or hidden cannot be known.
    assert float((found // 20 == truth)[:, 5:].double().mean()) > 0.95
    assert entry["bound"] < entry["energy"] and (tmp_path / "o.png").stat().st_size > 0
    Image.fromarray(np.zeros((20, 40), np.uint8)).save(tmp_path / "none.png")
    assert "0 everywhere" in refused(*given, "--truth", tmp_path / "none.png")
    assert "disparities" in refused(*given[:3], "--disparities", 41)


def test_matching_costs_by_fine_sampling() -> None:
    """Birchfield & Tomasi's definition, with the interpolated line sampled."""
    draw = np.random.default_rng(1)
    left, right = (draw.integers(0, 256, (1, 9, 1)).astype(float) for _ in range(2))
    found = matching_costs(torch.from_numpy(left), torch.from_numpy(right), 4, 100.0)[0].numpy()
    at = np.linspace(-0.5, 0.5, 2001)

    def one_sided(a: Any, x: int, b: Any, y: int) -> float:
        return float(np.abs(a[x] - np.interp(y + at, np.arange(9), b)).min())

    for x in range(9):
        for d in range(4):
            truth = 100.0
            if x >= d:
                a, b = left[0, :, 0], right[0, :, 0]
                truth = min(one_sided(a, x, b, x - d), one_sided(b, x - d, a, x), 100.0)
            assert found[x, d] == pytest.approx(truth, abs=0.15)


def test_stereo_costs_and_scores() -> None:
    matrix = truncated_linear(5, 2.0)
    assert all(matrix[i, j] == min(abs(i - j), 2) for i in range(5) for j in range(5))
    left, right, truth = pair(3, 1)
    assert stereo_crf(left, right, 6, most=None).kernels[0].compatibility is None
    known = truth.double()
    known[:, :10] = 0
    off = truth.clone()
    off[0, 10:16] += 2
    off[0, :10] += 5
    assert bad_pixels(off, known) == pytest.approx(6 / 600)
    with pytest.raises(OptionError, match="everywhere"):
        bad_pixels(off, known * 0)
    with pytest.raises(ShapeError, match="right"):
        matching_costs(left, right[1:], 4)


def test_cliques_of_regions_cost_by_their_variance() -> None:
    draw = np.random.default_rng(2)
    image = draw.integers(0, 256, (6, 7, 3)).astype(float)
    regions = draw.integers(-1, 4, (6, 7)) * 3  # with holes, and -3 for none
    regions[0, 0] = 100  # a single pixel
    cliques = region_cliques(torch.from_numpy(image), torch.from_numpy(regions), 7.0, 5000.0)
    numbers = [0, 3, 6, 9]
    assert len(cliques.cost) == 4 and cliques.member[0] == -1
    for k, number in enumerate(numbers):
        inside = (regions == number).ravel()
        assert np.array_equal((cliques.member == k).numpy(), inside)
        variance = np.mean([image.reshape(-1, 3)[inside, c].var() for c in range(3)])
        assert cliques.cost[k].item() == pytest.approx(7 * np.exp(-variance / 5000))
    both = region_cliques([torch.from_numpy(image)] * 2, [torch.from_numpy(regions)] * 2, 7.0, 5000.0)
    assert torch.equal(both.cost, cliques.cost.repeat(2))
    assert torch.equal(both.member[42:], torch.where(cliques.member < 0, -1, cliques.member + 4))
    with pytest.raises(ShapeError, match="regions"):
        region_cliques(torch.from_numpy(image), torch.from_numpy(regions[1:]))
    # Two segmentations overlap.
    bands = torch.arange(42).view(6, 7) // 20
    two = region_cliques(torch.from_numpy(image), torch.stack([torch.from_numpy(regions), bands], 2), 7.0, 5000.0)
    assert two.member.shape == (42, 2) and torch.equal(two.member[:, 0], cliques.member)
    assert two.member[:, 1].tolist() == [4] * 20 + [5] * 20 + [6] * 2 and torch.equal(two.cost[:4], cliques.cost)
    added = cliques + region_cliques(torch.from_numpy(image), bands, 7.0, 5000.0)
    assert torch.equal(added.member, two.member) and torch.equal(added.cost, two.cost)
    with pytest.raises(ModelError, match="same points"):
        cliques + both


def test_mean_shift_climbs_to_modes_and_joins_what_is_alike() -> None:
    """One pixel's way by plain loops; regions of a picture of three colours in noise, one too small to stay."""
    from skimage.color import rgb2luv

    draw = np.random.default_rng(0)
    image = np.full((14, 16, 3), 40.0)
    image[:, 9:] = (200, 60, 60)
    image[5:7, 3:5] = (60, 60, 200)  # four pixels
    image += draw.normal(0, 2, image.shape)
    luv = rgb2luv(image / 255)
    modes = _climb(torch.from_numpy(luv.astype(np.float32)), 3.0, 4.0, Deadline())
    for row, column in ((0, 0), (6, 4), (8, 12)):
        place, colour = np.array([row, column], float), luv[row, column]
        for _ in range(100):
            near = [(r, c) for r in range(14) for c in range(16) if np.hypot(r - place[0], c - place[1]) <= 3]
            near = [(r, c) for r, c in near if np.linalg.norm(luv[r, c] - colour) <= 4]
            last, place, colour = place, np.mean(near, 0), np.mean([luv[r, c] for r, c in near], 0)
            if np.abs(place - last).max() < 1e-9:
                break
        assert np.hypot(*(modes[16 * row + column, :2].numpy() * 3 - place)) < 0.5
        assert np.linalg.norm(modes[16 * row + column, 2:].numpy() * 4 - colour) < 1
    picture = torch.from_numpy(image)
    whole, small = mean_shift_regions(picture, 3.0, 6.0, 5), mean_shift_regions(picture, 3.0, 6.0, 1)
    assert len(whole.unique()) >= 2 and int(torch.bincount(whole.flatten()).min()) >= 5
    assert not set(whole[:, :9].unique().tolist()) & set(whole[:, 9:].unique().tolist())
    assert (small[5:7, 3:5] == small[5, 3]).all() and int((small == small[5, 3]).sum()) == 4
    assert int(mean_shift_regions(picture[:, :, :1], least=300).max()) == 0
    with pytest.raises(OptionError, match="colour -1"):
        mean_shift_regions(picture, colour=-1)
    with pytest.raises(ShapeError, match="1 or 3 channels"):
        mean_shift_regions(picture[:, :, :2])
    with pytest.raises(NonFiniteError, match="NaN"):
        mean_shift_regions(torch.full((3, 3, 3), torch.nan))
    with pytest.raises(ShapeError, match="segmentations"):
        region_cliques(picture, torch.zeros(*picture.shape[:2], 0, dtype=torch.int64))


@pytest.mark.parametrize("channels", [1, 3])
def test_superpixels_keep_to_a_strong_edge(channels: int) -> None:
    bright = (torch.arange(64) >= 29).expand(48, 64)
    regions = superpixels((bright[:, :, None] * 200.0 + 20).expand(48, 64, channels), 24)
    sizes = torch.bincount(regions.flatten())
    assert len(sizes) > 8 and int(sizes.min()) > 0
    inside = torch.bincount(regions[bright], minlength=len(sizes))
    assert float(torch.minimum(inside, sizes - inside).sum()) < 0.01 * 48 * 64
    with pytest.raises(ShapeError, match="channels"):
        superpixels(torch.zeros(4, 4, 2))


def test_colours_tell_labels_apart() -> None:
    for labels in (2, 10, 20, 21, 60):
        colours = pictures.label_colours(labels)
        apart = np.abs(colours[:, None] - colours).max(2) + np.eye(labels)
        assert colours.shape == (labels, 3) and apart.min() > 0.01


def test_many_labels_are_written_with_16_bits(tmp_path: Path) -> None:
    values = torch.tensor([[0, 300], [65535, 7]])
    pictures.write_grey(tmp_path / "a.png", values)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), values.numpy())


def test_the_demo_cuts_out_a_picture() -> None:
    pytest.importorskip("skimage")
    from blocklp.problems.densecrf.demo import coffee_crf, segment_coffee, show_coffee

    crf = coffee_crf()
    results = segment_coffee(crf)
    bound = max(r.bound.item() for r in results)
    for r in results:
        assert bound <= crf.energy(r.best_labelling).item() <= crf.energy(crf.unary.argmin(1)).item()
    assert min(r.best_gap.item() for r in results) < 0.01
    console = Console(record=True, width=120)
    show_coffee(crf, results, console)
    printed = console.export_text()
    assert all(r.method in printed for r in results)


@pytest.mark.slow
def test_the_gallery_is_a_picture_of_labellings_with_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("skimage")
    from blocklp.problems.densecrf.gallery import gallery

    gallery(tmp_path / "g.png", {"chelsea": 3}, shrink=16, disparities=5)
    assert np.asarray(Image.open(tmp_path / "g.png").convert("RGB")).std() > 10
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["chelsea", "motorcycle"]
    for line in lines:
        words = line.replace(",", "").split()
        assert float(words[4]) <= float(words[2])


def test_the_hint_names_no_value_in_force_and_waits_for_the_end(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("densecrf", files["image"], "--scribbles", files["marks"], "--method", "mean-field", "--smooth", 3, 1e5)
    hint = run(*given).stderr
    assert "--bilateral 30 13 5" in hint and "--gt-prob 0.95" in hint
    hint = run(*given, "--bilateral", 30, 13, 5, "--gt-prob", 0.95).stderr
    assert "narrower or lighter" in hint and "--" not in hint
    assert _lighter((80.0, 13.0, 3.0), None).endswith("(--bilateral 30 13 3), or surer costs")

    def late(*arguments: Any, **options: Any) -> Result:
        return replace(solve_densecrf(*arguments, **options), status=Status.TIME_LIMIT)

    monkeypatch.setattr("blocklp.problems.densecrf.solve_densecrf", late)
    assert "narrower" not in run(*given, code=1).stderr


def test_a_device_gives_the_same(files: dict[str, Path], device: torch.device) -> None:
    given = ("densecrf", files["image"], "--unary", files["u"], "--method", "mean-field", "--out", files["out"], "--json")
    here, there = (json.loads(run(*given, "--device", place).stdout) for place in ("cpu", device))
    assert there["energy"] == pytest.approx(here["energy"]) and there["pixels"] == here["pixels"]
    assert "not available" in refused(*given, "--device", "cuda:77")
