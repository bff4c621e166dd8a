"""The page in Chromium: errors, figures, numbers, widths, and the rules of axe."""

import dataclasses
import decimal
import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from jaxpriv import reports
from jaxpriv.defences import Defence
from tests import chromium
from tests.reports import examples

PHONE = 390
A4, A4_IN_MARGINS = 794, 718
"""Widths in CSS pixels; the last leaves the margins of 1 cm that Chromium prints by default."""

SVGS = """
[...document.querySelectorAll("svg")].map(svg => {
  const box = svg.getBoundingClientRect();
  const isVisible = svg.checkVisibility({opacityProperty: true, visibilityProperty: true});
  return svg.closest("figure") && svg.getAttribute("role") === "img" && isVisible
    && box.width > 0 && box.height > 0;
})
"""

TILES = """
[...document.querySelectorAll(".tile")].map(tile => [
  tile.querySelector("h2, h3").innerText,
  Object.fromEntries([...tile.querySelectorAll(".numbers > div")].map(
    number => [".note", ".big"].map(part => number.querySelector(part).innerText))),
])
"""

TOO_WIDE = """
mayScroll => [...document.querySelectorAll("body *:not(svg *)")].filter(element => {
  if (mayScroll && element.parentElement.closest(".scroll")) return false;
  const box = element.getBoundingClientRect();
  const scrolls = ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  const isCut = element.clientWidth && element.scrollWidth > element.clientWidth;
  return box.left < 0 || box.right > document.documentElement.clientWidth + 0.5
    || isCut && !(mayScroll && scrolls);
}).map(element => `${element.localName}: ${element.textContent.trim().slice(0, 40)}`)
"""
"""Lists elements that leave the page or are narrower than their content.

Rows of a table may do so, and what scrolls may be narrower, if `mayScroll`.
"""


def axe_file():
    """Returns the path of axe, or None. The package is not imported, since it needs Playwright."""
    spec = importlib.util.find_spec("axe_playwright_python")
    path = Path(spec.origin).with_name("axe.min.js") if spec and spec.origin else None
    return path if path and path.is_file() else None


pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
needs_axe = pytest.mark.skipif(axe_file() is None, reason="needs axe-playwright-python")


@pytest.fixture(scope="module")
def tab():
    path = shutil.which("chromium")
    assert path is not None
    with chromium.launch(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page on three models. The name of the data and the command contain long words."""
    constant = Defence(
        name="constant", title="constant answers", respond=lambda key, logits: 0 * logits
    )
    report = examples.make_report(
        *examples.make_entries(leak=1.0, defences=[constant]),
        *examples.make_entries(leak=0.0, promise=examples.make_promise(epsilon=2.001)),
        data=examples.make_data(name="hospital_admissions_2019_2025_all_wards"),
    )
    command = f"jaxpriv report --data /archive/{'a' * 120}.csv"
    report = dataclasses.replace(report, run=dataclasses.replace(report.run, command=command))
    return reports.write(report, tmp_path_factory.mktemp("report"))


def show(tab, page, *, width=1280, is_phone=False, media="screen", scheme="light"):
    """Opens a page. Scrollbars take no space, as on a phone and on paper."""
    tab.call("Emulation.setScrollbarsHidden", hidden=True)
    tab.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=1000,
        deviceScaleFactor=1,
        mobile=is_phone,
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    tab.call("Emulation.setEmulatedMedia", media=media, features=features)
    tab.open(page.as_uri())


def unexpected_events(tab, page):
    """Lists messages on the console, exceptions, and requests for anything but the page."""
    show(tab, page)
    kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    messages = [event for event in tab.events if event["method"] in kinds]
    requests = [
        event["params"]["request"]["url"]
        for event in tab.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert page.as_uri() in requests
    return messages + [url for url in requests if url != page.as_uri()]


def figure_problems(tab, page):
    """Lists figures that are invisible, or whose name for a screen reader is empty or shared."""
    show(tab, page)
    are_visible = tab.evaluate(SVGS)
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    names = [node["name"]["value"] for node in nodes if node["role"]["value"] == "image"]
    problems = [f"figure {i} is not visible" for i, is_ok in enumerate(are_visible) if not is_ok]
    if len(set(names) - {""}) != len(are_visible) or not are_visible:
        problems.append(f"{len(are_visible)} figures have the names {names}")
    return problems


def wrong_tiles(tab, page):
    """Lists tiles with other numbers than report.json."""
    show(tab, page)
    document = json.loads(page.with_name("report.json").read_text("utf8"))
    shown, expected = tab.evaluate(TILES), [expected_tile(e) for e in document["entries"]]
    assert len(shown) == len(expected) == 3
    return [tile for tile, want in zip(shown, expected, strict=True) if tile != want]


def expected_tile(entry):
    attacks = {attack["name"]: attack for attack in entry["findings"]["attacks"]}
    auc = attacks[entry["findings"]["strongest"]]["metrics"]["auc"]
    numbers = {
        "accuracy on non-members": f"{100 * entry['utility']['test']:.1f}\N{NO-BREAK SPACE}%",
        "AUC of the strongest attack": f"{auc:.3f}",
    }
    if entry["promise"] is not None:
        (epsilon,) = [
            guarantee["epsilon"]
            for guarantee in entry["promise"]["guarantees"]
            if guarantee["relation"] == entry["promise"]["relation"]
        ]
        cents = decimal.Decimal("0.01")
        rounded = decimal.Decimal(epsilon).quantize(cents, rounding=decimal.ROUND_CEILING)
        numbers["epsilon, at most"] = str(rounded)
    return [entry["name"], numbers]


def too_wide_for_a_phone(tab, page):
    """Lists what does not fit on a phone, where tables may be scrolled."""
    show(tab, page, width=PHONE, is_phone=True)
    return too_wide(tab, PHONE, may_scroll=True)


def cut_in_print(tab, page, *, width=A4):
    """Lists what does not fit on paper."""
    show(tab, page, width=width, media="print")
    return too_wide(tab, width, may_scroll=False)


def too_wide(tab, width, *, may_scroll):
    """Lists elements that do not fit, and the width that the page needs if it is larger."""
    elements = tab.evaluate(f"({TOO_WIDE})({json.dumps(may_scroll)})")
    needed = tab.evaluate("document.documentElement.scrollWidth")
    return elements + ([f"the page needs {needed} pixels"] if needed > width else [])


def violations(tab, page, *, scope="html", rules=(), **view):
    """Lists the rules of axe, by default all, that elements within a selector violate."""
    file = axe_file()
    assert file is not None
    show(tab, page, **view)
    tab.evaluate(file.read_text("utf8"))
    options = {"resultTypes": ["violations"]} | ({"runOnly": rules} if rules else {})
    result = tab.evaluate(f"axe.run({json.dumps(scope)}, {json.dumps(options)})")
    assert result["passes"] or result["violations"]
    return [
        (violation["id"], [node["target"] for node in violation["nodes"]])
        for violation in result["violations"]
    ]


def test_the_page_loads_without_errors_and_loads_nothing_else(tab, page):
    assert unexpected_events(tab, page) == []


def test_every_figure_is_visible_and_has_a_name_of_its_own(tab, page):
    assert figure_problems(tab, page) == []


def test_the_tiles_show_the_numbers_of_the_json(tab, page):
    assert wrong_tiles(tab, page) == []


def test_nothing_is_wider_than_a_phone(tab, page):
    assert too_wide_for_a_phone(tab, page) == []


@pytest.mark.parametrize("width", [A4, A4_IN_MARGINS])
def test_nothing_is_cut_in_print(tab, page, width):
    assert cut_in_print(tab, page, width=width) == []


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(tab, page, scheme):
    assert violations(tab, page, scheme=scheme) == []


@needs_axe
def test_tables_that_scroll_can_be_scrolled_with_the_keyboard(tab, page, tmp_path):
    view = {"rules": ["scrollable-region-focusable"], "width": PHONE, "is_phone": True}
    assert violations(tab, page, **view) == []
    assert violations(tab, break_page(page, tmp_path, ' tabindex="0"', ""), **view)


@needs_axe
def test_axe_notices_a_faint_title_in_the_scheme_that_has_it(tab, page, tmp_path):
    faint = "@media (prefers-color-scheme: dark) { h1 { color: #222; } }</style>"
    broken = break_page(page, tmp_path, "</style>", faint)
    assert violations(tab, broken, scope="header", scheme="light") == []
    (violation,) = violations(tab, broken, scope="header", scheme="dark")
    assert violation == ("color-contrast", [["h1"]])


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (unexpected_events, "</body>", "<script>throw Error()</script></body>"),
        (unexpected_events, "</body>", "<script>console.error('x')</script></body>"),
        (unexpected_events, "</body>", '<img src="missing.png" alt=""></body>'),
        (figure_problems, "</style>", "figure svg { visibility: hidden; }</style>"),
        (figure_problems, "</style>", "figure svg { height: 0 !important; }</style>"),
        (figure_problems, 'role="img" ', ""),
        (figure_problems, ' aria-label="', ' data-label="'),
        (wrong_tiles, '"big">', '"big">1'),
        (too_wide_for_a_phone, "</style>", "main { min-width: 25rem; }</style>"),
        (too_wide_for_a_phone, "</style>", ".scroll { overflow-x: hidden; }</style>"),
        (cut_in_print, "</style>", ".scroll table { min-width: 90rem !important; }</style>"),
        (cut_in_print, "</style>", "pre { white-space: pre; overflow: auto; }</style>"),
    ],
)
def test_a_broken_page_fails(tab, page, tmp_path, check, old, new):
    assert check(tab, break_page(page, tmp_path, old, new))


def break_page(page, folder, old, new):
    """Writes a copy of the page with a fault."""
    html = page.read_text("utf8")
    assert old in html
    shutil.copy(page.with_name("report.json"), folder)
    (folder / "report.html").write_text(html.replace(old, new), "utf8")
    return folder / "report.html"
