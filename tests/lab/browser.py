"""A browser for tests of pages: Chromium without a window, if it is installed."""

import contextlib
import json
import shutil

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
MARKS = [
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


@contextlib.contextmanager
def opened(downloads=None):
    """The driver of a browser that logs messages and requests; its profile is new."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER)) as page:
        if downloads is not None:
            how = {"behavior": "allow", "downloadPath": str(downloads)}
            page.execute_cdp_cmd("Browser.setDownloadBehavior", how)
        yield page


def resize(page, width, height=900):
    """The size of the window, in pixels of the page."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def asked_for(page):
    """The addresses that the page asked for since the last call, but data: and blob: ones."""
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    urls = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    return {url for url in urls if not url.startswith(("data:", "blob:"))}
