"""The built site: links lead somewhere, pictures have words, and wide tables stay in their box.

`make test` builds it before it runs the tests.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "_build" / "html"
TUTORIALS = sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("plot_*.py"))

bs4 = pytest.importorskip("bs4", reason="the site is not built without the extra docs")


@cache
def read(path: Path) -> bs4.BeautifulSoup:
    return bs4.BeautifulSoup(path.read_text(), "html.parser")


@pytest.fixture(scope="module")
def pages() -> list[Path]:
    found = sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts and path.name != "genindex.html")
    if not found:
        pytest.skip("the site is not built; make docs")
    return found


def test_links_and_pictures_lead_to_files_and_places_that_exist(pages: list[Path]) -> None:
    places = {path: {tag["id"] for tag in read(path).find_all(id=True)} for path in pages}
    broken = []
    for page in pages:
        article = read(page).find("article")
        assert article is not None, page
        for tag, attribute in (("a", "href"), ("img", "src")):
            for found in article.find_all(tag, {attribute: True}):
                target, _, place = found[attribute].partition("#")
                if re.match(r"[a-z]+:", target):
                    continue
                file = (page.parent / unquote(target)).resolve() if target else page
                if not file.is_file() or (place and file in places and unquote(place) not in places[file]):
                    broken.append(f"{page.relative_to(SITE)}: {found[attribute]}")
    assert not broken


def test_every_picture_says_in_words_what_it_shows(pages: list[Path]) -> None:
    silent = [
        f"{page.relative_to(SITE)}: {found['src']}"
        for page in pages
        for found in read(page).find_all("img")
        if len(found.get("alt", "").strip()) < 5 and not found.find_parent(class_="sphx-glr-thumbcontainer")  # its title is a link
    ]
    assert not silent


def test_wide_tables_scroll_in_their_own_box(pages: list[Path]) -> None:
    boxes = {"table-wrapper", "output_html"}
    loose = [
        str(page.relative_to(SITE))
        for page in pages
        for table in read(page).find("article").find_all("table")
        if not any(boxes & set(parent.get("class", [])) for parent in table.parents)
    ]
    assert not loose
    assert re.search(r"\.table-wrapper \{[^}]*overflow-x: auto", (SITE / "_static" / "site.css").read_text())


def test_the_landing_page_has_ten_lines_of_code_a_picture_and_three_doors(pages: list[Path]) -> None:
    article = read(SITE / "index.html").find("article")
    assert article is not None
    [code] = article.find_all("pre")
    assert len([line for line in code.get_text().splitlines() if line.strip()]) <= 10
    doors = article.select(".doors .sd-card")
    assert len(doors) == 3 and all(door.find("img") and door.find("a", href=True) for door in doors)
    assert len(article.find_all("img")) == 4


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_is_a_page_with_a_picture_and_a_notebook(pages: list[Path], tutorial: str) -> None:
    page = SITE / "gallery" / f"{tutorial}.html"
    assert page in pages
    assert read(page).select("article img")
    [notebook] = SITE.glob(f"_downloads/*/{tutorial}.ipynb")
    cells = json.loads(notebook.read_text())["cells"]
    code = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert "assert " in code and "blocklp" in code
    assert cells[0]["source"] == ["%matplotlib inline"]  # without it old versions show a picture one cell late


def test_the_theme_has_a_dark_mode_and_a_search(pages: list[Path]) -> None:
    page = read(SITE / "index.html")
    assert page.select("button.theme-toggle") and page.select("form.sidebar-search-container")


def luminance(colour: str) -> float:
    """Relative luminance of ``#rgb`` or ``#rrggbb`` (WCAG 2.1)."""
    digits = colour[1:] if len(colour) > 4 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_text_and_code_have_the_contrast_of_wcag_aa_in_both_modes(pages: list[Path]) -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    theme = (SITE / "_static" / "styles" / "furo.css").read_text()
    modes = re.findall(r"\{([^{}]*--color-background-primary:#[^{}]*)\}", theme)
    assert {re.search(r"background-primary:(#\w+)", mode)[1] for mode in modes} == {"#fff", "#131416"}
    for mode in modes:
        colours = dict(re.findall(r"--color-([\w-]+):(#\w+)", mode))
        texts = [n for n in colours if n.startswith(("foreground-", "brand-", "api-")) and "border" not in n]
        low = [n for n in texts for b in ("primary", "secondary") if contrast(colours[n], colours[f"background-{b}"]) < 4.5]
        assert len(texts) >= 6 and not low
    code = (SITE / "_static" / "pygments.css").read_text()
    unused = {"w": "blanks", "err": "errors", "cs": "special comments"}  # dark red, which no page has
    assert not [page for page in pages for name in ("err", "cs") if read(page).select(f".highlight span.{name}")]
    for prefix in (r"^\.highlight", r'^body\[data-theme="dark"\] \.highlight'):
        rules = dict(re.findall(rf"(?m){prefix}(?: \.(\w+))? \{{[^}}]*?(?<!-)color: (#\w+)", code))
        [back] = set(re.findall(rf"(?m){prefix} \{{ background: (#\w+)", code))
        assert len(rules) > 60 and not [n for n, colour in rules.items() if n not in unused and contrast(colour, back) < 4.5]
