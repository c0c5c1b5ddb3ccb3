"""The page in a browser: what hovering shows, what a click on the legend does, both themes, and a telephone's width."""

import json
import shutil
import time

import pytest

from ausam_lab.report.pages.comparison import render
from tests.lab.report.example import FIGURES, compared

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.nightly,  # only `make test-all` installs selenium
    pytest.mark.skipif(
        not (BROWSER and DRIVER), reason="no Chromium with its chromedriver is installed (Debian: chromium-driver)"
    ),
]
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
)
CHARTS = 4

# of a chart: each drawn mark of a layer, whose it is and how much of it is to be seen
MARKS = """
const svg = document.querySelectorAll("figure.chart svg")[arguments[0]];
return [...svg.querySelectorAll(`g.${arguments[1]} > path`)].map(mark =>
  [mark.__data__.datum.method ?? mark.__data__.items?.[0].datum.method, Number(mark.getAttribute("opacity") ?? 1)]);
"""
LEGEND = """
const svg = document.querySelectorAll("figure.chart svg")[arguments[0]];
return [...svg.querySelectorAll("g.role-legend-label text")].find(text => text.textContent == arguments[1]);
"""
MARK = """
const svg = document.querySelectorAll("figure.chart svg")[arguments[0]];
return [...svg.querySelectorAll(`g.${arguments[1]} > path`)].find(mark => mark.__data__.datum.method == arguments[2]);
"""
SIZES = """
return [...document.querySelectorAll("figure.chart svg")].map(svg => {
  const frame = svg.getBoundingClientRect();
  const whole = [...svg.querySelectorAll("text")].map(text => text.getBoundingClientRect()).every(
    text => text.left >= frame.left - 1 && text.right <= frame.right + 1 && text.bottom <= frame.bottom + 1);
  return [svg.clientWidth, svg.parentElement.clientWidth, whole];
});
"""


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(compared(FIGURES)), encoding="utf-8")
    return path.as_uri()


def until(condition, seconds=20):
    """What the condition gives as soon as it is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "the page does not get there"
        time.sleep(0.05)
    return value


@pytest.fixture
def opened(browser, address):
    def opened(where=address, width=1280, theme="light", scripts=True):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        browser.get("about:blank")
        browser.get_log("browser"), browser.get_log("performance")  # what came before
        browser.get(where)
        drawn = "return document.querySelectorAll('figure.chart svg .mark-group').length"
        until(lambda: browser.execute_script(drawn) >= CHARTS)
        return browser

    yield opened
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def point_at(page, element):
    """Move the mouse onto an element."""
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    webdriver.ActionChains(page).move_to_element(element).perform()


def click(page, element):
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    webdriver.ActionChains(page).move_to_element(element).click().perform()


def tooltip(page):
    """What is shown beside the mouse: its lines, as name and figure."""
    cells = "return [...document.querySelectorAll('#vg-tooltip-element.visible tr')].map(r => r.innerText.split('\\t'))"
    return {name.rstrip(":"): figure for name, figure in until(lambda: page.execute_script(cells))}


def test_nothing_is_asked_for_and_nothing_goes_wrong(opened, address):
    page = opened()
    point_at(page, page.execute_script(MARK, 0, "marks_marks", "AUSAM-0.5"))
    tooltip(page)
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert address in asked  # the record works
    assert [url for url in asked if url != address and not url.startswith("data:")] == []
    assert page.get_log("browser") == []  # no error, no warning, nothing the policy had to stop


def test_hovering_shows_the_figures(opened):
    page = opened()
    point_at(page, page.execute_script(MARK, 0, "marks_marks", "AUSAM-0.5"))
    shown = tooltip(page)
    assert shown == {"method": "AUSAM-0.5", "accuracy": "95.50 ± 0.26 %", "training time": "6.41 ± 0.10 s", "runs": "3"}
    point_at(page, page.execute_script(MARK, 3, "marks_marks", "AUSAM-0.5"))
    until(lambda: "labels" in tooltip(page))
    assert tooltip(page) == {"method": "AUSAM-0.5", "labels": "correctly labelled", "times chosen (mean)": "10.0"}


@pytest.mark.parametrize(("chart", "layer"), [(0, "marks_marks"), (1, "dots_marks")])
@pytest.mark.parametrize("seeds", [1, 3])
def test_a_click_on_the_legend_isolates_a_method(opened, tmp_path, chart, layer, seeds):
    path = tmp_path / "report.html"
    figures = {name: (scores[:seeds], *rest) for name, (scores, *rest) in FIGURES.items()}
    path.write_text(render(compared(figures)), encoding="utf-8")
    page = opened(path.as_uri())
    names = set(FIGURES)

    def seen():
        return {name.lower() for name, opacity in page.execute_script(MARKS, chart, layer) if opacity > 0.5}

    assert seen() == names
    click(page, page.execute_script(LEGEND, chart, "SAM"))
    until(lambda: seen() == {"sam"})
    click(page, page.execute_script(LEGEND, chart, "AUSAM-0.5"))
    until(lambda: seen() == {"sam", "ausam-0.5"})
    for name in ("SAM", "AUSAM-0.5"):
        click(page, page.execute_script(LEGEND, chart, name))
    until(lambda: seen() == names)
    assert page.get_log("browser") == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    ("theme", "paper", "ink"), [("light", "255, 255, 255", "27, 31, 36"), ("dark", "20, 24, 29", "232, 236, 241")]
)
def test_themes_and_widths(opened, width, theme, paper, ink):
    page = opened(width=width, theme=theme)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width  # nothing hangs over
    sizes = page.execute_script(SIZES)
    assert len(sizes) == CHARTS
    assert page.find_element("css selector", ".live").is_displayed()
    for inner, outer, whole in sizes:
        assert 0.9 * outer < inner <= outer
        assert whole  # no word of axis or legend is cut off
    colour = "return getComputedStyle(arguments[0])[arguments[1]]"
    assert paper in page.execute_script(colour, page.find_element("css selector", "body"), "backgroundColor")
    legend = page.execute_script(LEGEND, 0, "SAM")
    assert ink in page.execute_script(colour, legend, "fill")


def test_the_verdicts_are_to_be_seen_on_a_telephone(opened):
    page = opened(width=390)
    cells = page.find_elements("css selector", "table.stack td:last-child")
    assert [cell.text for cell in cells] == ["worse", "better", "better", "no difference shown"]
    for cell in cells:
        assert cell.rect["x"] + cell.rect["width"] <= 390


def test_many_rows_on_a_telephone(opened, tmp_path):
    figures = {f"method-{i}": ([94.0 + i / 10, 94.5, 95.0], 6.0 + i, 2000, None) for i in range(25)}
    path = tmp_path / "many.html"
    comparison = compared({**figures, "ausam-0.5": FIGURES["ausam-0.5"]})
    path.write_text(render(comparison), encoding="utf-8")
    page = opened(path.as_uri(), width=390)
    assert [whole for _, _, whole in page.execute_script(SIZES)] == [True] * CHARTS


def test_without_scripts_the_drawings_are_there(opened):
    page = opened(scripts=False)
    texts = page.execute_script("return [...document.querySelectorAll('noscript svg')].map(s => s.textContent)")
    assert len(texts) == CHARTS
    assert all("AUSAM-0.5" in text for text in texts)
    assert not page.find_element("css selector", ".live").is_displayed()  # what cannot be clicked is not offered
