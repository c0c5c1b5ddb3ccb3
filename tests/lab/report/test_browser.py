"""The page in a browser: it draws its charts, fetches nothing, and fits a phone."""

import time

from ausam_lab.report.pages.comparison import render
from tests.lab import browser
from tests.lab.report.example import FIGURES, compared

pytestmark = browser.MARKS
MARKS = "return document.querySelectorAll('figure.chart svg .marks_marks > path, figure.chart svg .dots_marks > path')"
LEGEND = """return [...document.querySelectorAll('g.role-legend-label text')].find(text => text.textContent == 'SAM')"""


def test_the_page_is_drawn_offline_and_fits_a_phone(tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(compared(FIGURES)), encoding="utf-8")
    with browser.opened() as page:
        for width in (1280, 390):
            browser.resize(page, width)
            page.get(path.as_uri())
            end = time.monotonic() + 20
            while len(page.execute_script("return document.querySelectorAll('figure.chart svg')")) < 2:
                assert time.monotonic() < end, "the charts are not drawn"
                time.sleep(0.05)
            assert page.execute_script("return document.documentElement.scrollWidth") <= width
        marks = len(page.execute_script(MARKS))
        entry = page.execute_script(LEGEND)
        page.execute_script("arguments[0].scrollIntoView({block: 'center'})", entry)
        browser.webdriver.ActionChains(page).move_to_element(entry).click().perform()
        time.sleep(0.5)
        assert len(page.execute_script(MARKS)) < marks  # a click on the legend isolates a method
        assert browser.asked_for(page) == {path.as_uri()}
        assert page.get_log("browser") == []  # no error, no warning
