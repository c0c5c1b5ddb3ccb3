"""The page of an audit as a tool, in a browser: decisions, keys, files, filters, the share, thousands of cards."""

import csv
import io
import json
import time

import numpy as np
import pytest
from PIL import Image

from ausam.audit import Decision, LabelErrors, Redundant, Verdict, read_decisions
from ausam.audit.review import harmless
from ausam_lab.data.samples import Shown
from ausam_lab.report.pages import audit as page
from ausam_lab.report.pages.audit import Audited, choose_rows
from tests.audit.test_review import HOSTILE
from tests.lab import browser

pytestmark = browser.MARKS
NAMES = ("<b>cat</b>", 'quo"te', "=1+1", "line\nbreak", "dog", "kite", "'zebra", "moon", "a;=2", "ox", "fox", "bus")


def png(i, side=8):
    out = io.BytesIO()
    Image.new("L", (side, side), int(i) % 256).save(out, "PNG")
    return out.getvalue()


def audited(n=400, names=NAMES, flagged=60, cards=None, texts=(), origin=0):
    """An audit of n samples, of which sample n - 1 is the most suspect one."""
    labels = np.arange(n) % len(names)
    order = np.arange(n)[::-1].copy()
    marked = np.zeros(n, bool)
    marked[order[:flagged]] = True
    loss = np.linspace(0.01, 5, n)
    likely = (labels + 1) % len(names)
    likely[: n // 2] = -1
    errors = LabelErrors(marked, loss, likely, 3.0, 1.0, np.zeros(0, np.int64), "flagged")
    rows = choose_rows(errors, labels)
    return Audited(
        title="<i>mine</i>",
        about="",
        command="ausam audit",
        created="today",
        verdict=Verdict("wrong labels", (f"{flagged} labels look wrong.",)),
        errors=errors,
        redundant=Redundant(order[:0], 0.0, 1.0),
        columns={"spread": np.linspace(1, 0, n)},
        labels=labels,
        names=tuple(names),
        origin=np.arange(n) + origin,
        rows=rows,
        cards=tuple(Shown(png(i), "png", 8) for i in rows) if cards is None else cards(rows),
        texts=texts,
        hidden="",
        next_steps=("ausam audit run --decisions decisions.csv",),
    )


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    downloads = tmp_path_factory.mktemp("downloads")
    with browser.opened(downloads) as driver:
        driver.downloads = downloads
        yield driver


@pytest.fixture
def show(chromium, tmp_path):
    """Opens the page of an audit, without earlier decisions; nothing may be logged or asked for."""

    def opens(shown, width=1280):
        path = tmp_path / "audit.html"
        text, pictures = page.render(shown, path)
        path.write_text(text, encoding="utf-8")
        for file, content in pictures.items():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        browser.resize(chromium, width)
        chromium.get(path.as_uri())
        chromium.execute_script("localStorage.clear()")
        chromium.get(path.as_uri())
        return chromium

    browser.asked_for(chromium), chromium.get_log("browser")
    yield opens
    assert chromium.get_log("browser") == []  # no error, no warning
    assert {url for url in browser.asked_for(chromium) if not url.startswith(tmp_path.as_uri())} == set()


def js(driver, code, *arguments):
    return driver.execute_script(f"return {code}", *arguments)


def decisions(driver):
    """All decisions by index, as the page would export them."""
    rows = list(csv.DictReader(io.StringIO(js(driver, "toCsv()"), newline="")))
    return {int(row["index"]): (row["decision"], row["new_label"]) for row in rows}


def press(driver, *keys):
    for key in keys:
        browser.webdriver.ActionChains(driver).send_keys(key).perform()


def shift(driver, *keys):
    held = browser.webdriver.ActionChains(driver).key_down(Keys.SHIFT)
    held.send_keys(*keys).key_up(Keys.SHIFT).perform()


Keys = browser.webdriver.Keys


def test_keys_decide_and_decisions_survive_a_reload(show):
    driver = show(audited())
    assert "0 of 60 flagged reviewed" in driver.find_element("id", "count").text
    press(driver, "k", Keys.ENTER, "x", "u")
    expected = {
        399: ("keep", ""),
        398: ("relabel", harmless(NAMES[399 % 12])),
        397: ("remove", ""),
        396: ("unsure", ""),
    }
    assert decisions(driver) == expected
    press(driver, "f", "o", "x", Keys.ENTER)  # by its name
    expected[395] = ("relabel", "fox")
    press(driver, "1", "1", Keys.ENTER)  # by its number
    expected[394] = ("relabel", "bus")
    press(driver, Keys.ARROW_RIGHT)
    shift(driver, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    press(driver, "r")
    driver.find_element("id", "typed").send_keys("moon")
    press(driver, Keys.ENTER)
    assert decisions(driver) == expected | {392: ("relabel", "moon"), 391: ("keep", ""), 390: ("relabel", "moon")}
    press(driver, "z")
    assert decisions(driver) == expected
    assert "6 of 60 flagged reviewed" in driver.find_element("id", "count").text
    driver.refresh()
    assert decisions(driver) == expected
    assert "6 of 60 flagged reviewed" in driver.find_element("id", "count").text


def test_digits_are_the_classes_of_few(show):
    driver = show(audited(names=tuple("0123456789")))
    press(driver, "3", Keys.ARROW_DOWN, "9")
    columns = js(driver, "columns")
    assert decisions(driver) == {
        399: ("relabel", "3"),
        398 - columns: ("relabel" if (398 - columns) % 10 != 9 else "keep", "9"),
    }


def test_export_and_import_agree_with_python(show, tmp_path):
    shown = audited(origin=1000)
    driver = show(shown)
    rng = np.random.default_rng(0)
    wanted = {}
    for row, index in enumerate(shown.origin[shown.rows[:80]].tolist()):
        kind = ["keep", "relabel", "remove", "unsure"][rng.integers(4)]
        label = int((shown.labels[index - 1000] + rng.integers(1, 12)) % 12) if kind == "relabel" else -1
        js(driver, "decide([arguments[0]], arguments[1], arguments[2])", row, kind, label)
        wanted[index] = Decision(index, kind, label)
    driver.find_element("id", "export").click()
    path = driver.downloads / "decisions.csv"
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, "nothing was downloaded"
        time.sleep(0.05)
    found = read_decisions(path, NAMES)
    assert {decision.index: decision for decision in found} == wanted
    before = decisions(driver)
    js(driver, "(localStorage.clear(), decisions.clear(), changed())")
    assert decisions(driver) == {}
    driver.find_element("id", "import").send_keys(str(path))
    while not decisions(driver):
        assert time.monotonic() < end, "nothing was imported"
    assert decisions(driver) == before
    bad = tmp_path / "bad.csv"
    bad.write_text("index,decision,new_label\n1399,relabel,horse\n5,keep,\n", encoding="utf-8")
    driver.find_element("id", "import").send_keys(str(bad))
    while "left out" not in driver.find_element("id", "message").text:
        assert time.monotonic() < end
    assert decisions(driver) == before | {5: ("keep", "")}  # a sample that this page does not hold is kept


def test_the_page_and_python_write_the_same_cells(show):
    driver = show(audited(30, flagged=3))
    assert js(driver, "arguments[0].map(harmless)", HOSTILE) == list(map(harmless, HOSTILE))
    text = js(driver, "arguments[0].map((text) => [text, 1].map(cell).join(',')).join('\\n')", HOSTILE)
    assert [row[0] for row in csv.reader(io.StringIO(text, newline=""))] == list(map(harmless, HOSTILE))
    assert js(driver, "fromCsv(arguments[0]).map((line) => line[0])", text) == list(map(harmless, HOSTILE))


@pytest.mark.parametrize("n", [300, 5000])
def test_the_share_is_that_of_python(show, n):
    shown = audited(n)
    driver = show(shown)
    review, rng = shown.review, np.random.default_rng(n)
    assert js(driver, "share()") is None
    driver.find_element("css selector", "#estimate summary").click()
    driver.find_element("id", "show-drawn").click()
    assert js(driver, "view.length") == 200
    made = [(int(i), ["keep", "relabel", "remove", "unsure"][rng.integers(4)]) for i in review.index]
    made += [(i, "remove") for i in range(n - 1, n - 40, -1)]  # others, which count as reviewed only
    place = {int(i): row for row, i in enumerate(shown.rows)}
    for i, kind in made:
        js(driver, "decisions.set(arguments[0], [arguments[1], arguments[1] === 'relabel' ? 0 : -1])", place[i], kind)
    js(driver, "changed()")
    last = [Decision(i, kind, 0) for i, kind in dict(made).items()]
    expected = review.share(last)
    found = js(driver, "share()")
    for name, value in found.items():
        assert value == pytest.approx(getattr(expected, name), abs=1e-9)
    wrong, count = review.expected_wrong(shown.errors.order, last)
    assert js(driver, "expectedWrong()") == [pytest.approx(wrong, abs=1e-9), count]
    said = driver.find_element("id", "share").text
    assert said.startswith(str(expected).removesuffix(").") + ").")
    assert "200 drawn reviewed" in driver.find_element("id", "count").text


def test_five_thousand_cards_scroll_without_a_scroll_box(show):
    driver = show(audited(6000, flagged=0))
    assert js(driver, "view.length") > 5000
    assert js(driver, "cards.size") < 200
    step = js(driver, "grid.getBoundingClientRect().height")
    for part in (0.3, 0.7, 1.0):
        js(driver, "scrollTo(0, arguments[0] + grid.offsetTop - innerHeight)", part * step)
        end = time.monotonic() + 10
        wanted = "[...cards.keys()].some((at) => at >= Math.floor(arguments[0] * (view.length - 1)))"
        while not js(driver, wanted, part):
            assert time.monotonic() < end
        assert js(driver, "cards.size") < 200
    boxes = """[...document.querySelectorAll('body *')].filter((e) => /auto|scroll/.test(getComputedStyle(e).overflowY)
        && e.scrollHeight > e.clientHeight + 1 && e.offsetParent).length"""
    assert js(driver, boxes) == 0


def test_filters_combine(show):
    shown = audited(texts=tuple(f"files/image-{i}.png" for i in range(400)))
    driver = show(shown)
    js(driver, "(Object.assign(filter, {which: 'all', given: '3', search: 'image-3'}), refilter())")
    found = set(js(driver, "view.map((row) => data.index[row])"))
    assert found == {i for i in range(400) if i % 12 == 3 and f"image-{i}".startswith("image-3")}
    press(driver, "k")
    js(driver, "(Object.assign(filter, {decided: 'none'}), refilter())")
    assert len(js(driver, "view")) == len(found) - 1
    driver.find_element("id", "clear").click()
    js(driver, "byId('overview').open = true")
    cell = next(c for c in driver.find_elements("css selector", "#heat button") if c.text)
    given, likely = cell.get_attribute("title").removeprefix("given ").split(": ")[0].split(", likely ")
    n = int(cell.text)
    cell.click()
    pairs = js(driver, "view.map((row) => [nameOf(data.given[row]), nameOf(data.likely[row])])")
    assert pairs == [[given, likely]] * n
    driver.find_element("id", "clear").click()
    canvas = driver.find_element("css selector", "#map canvas")
    drag = browser.webdriver.ActionChains(driver).move_to_element_with_offset(canvas, 0, -100).click_and_hold()
    drag.move_by_offset(120, 150).release().perform()
    few = js(driver, "view.map((row) => [data.x[row], data.y[row]])")
    left, right, low, high = js(driver, "filter.area")
    assert 0 < len(few) < 400
    assert all(left <= x <= right and low <= y <= high for x, y in few)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_names_are_no_html(show, width, dark):
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver = show(audited(), width)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    js(driver, "byId('overview').open = true")
    assert js(driver, "document.documentElement.scrollWidth") <= width
    assert js(driver, "document.querySelectorAll('b:not(.mark), i').length") == 0
    assert {"<b>cat</b>", 'quo"te'} < set(
        js(driver, "[...document.querySelectorAll('#given option')].map((o) => o.textContent)")
    )
    js(driver, "showDetail()")
    assert js(driver, "byId('detail').scrollWidth") <= width
    paper, ink = js(driver, "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    assert (sum(map(int, json.loads(f"[{paper[4:-1]}]"))) < 300) == dark
    assert paper != ink


def test_originals_are_shown_at_full_size_and_texts_as_cards(show, tmp_path):
    (tmp_path / "im #1%.png").write_bytes(png(9, 200))
    cards = lambda rows: tuple(Shown(png(i), "png", 200, "", tmp_path / "im #1%.png") for i in rows)  # noqa: E731
    driver = show(audited(cards=cards))
    js(driver, "showDetail()")
    end = time.monotonic() + 10
    while js(driver, "document.querySelector('.whole').naturalWidth") != 200:
        assert time.monotonic() < end
    assert js(driver, "document.querySelectorAll('.others img').length") == 12
    driver = show(audited(cards=lambda rows: tuple(Shown(text=f"<u>row {i}</u>\n1.5  2.5") for i in rows)))
    assert driver.find_element("css selector", ".card .words").text == "<u>row 399</u>\n1.5 2.5"
    driver = show(audited(cards=lambda rows: tuple(Shown() for _ in rows), texts=tuple(f"a/b {i}" for i in range(400))))
    assert driver.find_element("css selector", ".card .words").text == "a/b 399"
    assert driver.find_element("css selector", ".card .soft").text.split() == ["#1", "399"]


def test_many_pictures_are_beside_the_page(show, monkeypatch):
    monkeypatch.setattr(page, "INSIDE", 1000)
    driver = show(audited())
    image = "document.querySelector('.card img')"
    assert "audit_files/399.png" in js(driver, f"{image}.src")
    end = time.monotonic() + 10
    while js(driver, f"{image}.naturalWidth") != 8:
        assert time.monotonic() < end
