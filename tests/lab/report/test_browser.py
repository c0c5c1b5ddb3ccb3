"""The page in a browser: it draws its charts, fetches nothing, and fits a phone."""

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
MARKS = "return document.querySelectorAll('figure.chart svg .marks_marks > path, figure.chart svg .dots_marks > path')"
LEGEND = """return [...document.querySelectorAll('g.role-legend-label text')].find(text => text.textContent == 'SAM')"""


def test_the_page_is_drawn_offline_and_fits_a_phone(tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(compared(FIGURES)), encoding="utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER)) as page:
        for width in (1280, 390):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            page.get(path.as_uri())
            end = time.monotonic() + 20
            while len(page.execute_script("return document.querySelectorAll('figure.chart svg')")) < 3:
                assert time.monotonic() < end, "the charts are not drawn"
                time.sleep(0.05)
            assert page.execute_script("return document.documentElement.scrollWidth") <= width
        marks = len(page.execute_script(MARKS))
        entry = page.execute_script(LEGEND)
        page.execute_script("arguments[0].scrollIntoView({block: 'center'})", entry)
        webdriver.ActionChains(page).move_to_element(entry).click().perform()
        time.sleep(0.5)
        assert len(page.execute_script(MARKS)) < marks  # a click on the legend isolates a method
        events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
        assert page.get_log("browser") == []  # no error, no warning
