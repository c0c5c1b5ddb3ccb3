"""The documentation as a site: built strictly, it needs no network, and it leaves out no page and no public name."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import ausam
import ausam.diagnostics

pytest.importorskip("mkdocs", reason='needs pip install "ausam[docs]"')
pytest.importorskip("mkdocstrings_handlers.python", reason='needs pip install "ausam[docs]"')

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.nightly  # two builds of the site; `make docs` builds it strictly too


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """``mkdocs build --strict``: a page outside the navigation and a link that leads nowhere are errors."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_copy_button_knows_the_blocks_of_python(site):
    """Every source is a page, and docs/copy.js adds the box "Run this first" to what it finds by this class."""
    for source in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]:
        blocks = len(re.findall(r"^```python$", source.read_text(), re.MULTILINE))
        address = source.relative_to(ROOT / "docs").with_suffix("")
        page = (site / (address.parent if address.name == "index" else address) / "index.html").read_text()
        assert len(re.findall('<div class="language-python highlight">', page)) >= blocks, source


class Resources(HTMLParser):
    """What a browser fetches by itself to show a page; an ordinary link is not among it."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag != "a":
            self.found += [value for name, value in attributes if name in ("src", "href", "srcset") and value]


def remote(page):
    parser = Resources()
    parser.feed(page)
    return [address for address in parser.found if re.match(r"(https?:)?//", address)]


def test_pages_ask_nothing_of_the_network(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    assert {str(page.relative_to(site)): remote(page.read_text()) for page in pages if remote(page.read_text())} == {}
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import )['\"]?(?:https?:)?//[^)'\"]*", sheet.read_text()) == [], sheet


def test_the_search_index_holds_every_page(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    pages = {entry["location"].split("#")[0] for entry in index["docs"]}
    assert {f"{p.parent.relative_to(site).as_posix()}/" for p in site.rglob("index.html") if p.parent != site} <= pages
    assert any("clip_grad_norm_" in entry["text"] for entry in index["docs"])  # code is found too


FIRST = {
    "how to choose alpha": "choose/",
    "export suspects": "wrong-labels/",
    "Lion": "models/",
    "NaN": "troubleshooting/",
    "multi gpu": "distributed/",
    "mislabeled": "wrong-labels/",
    "resume": "training-step/",
    "cleanlab": "results/audit/",
    "label noise": "wrong-labels/",
    "folder of images": "wrong-labels/",
    "export flagged labels": "wrong-labels/",
    "mixed precision": "training-step/",
    "contrastive": "training-step/",
    "imbalanced": "choose/",
    "base optimizer": "models/",
    "state in the loss function": "models/",
    "theory": "paper/",
    "frozen layers": "models/",
    "own dataset": "data/",
    "speed": "speed/",
    "sharpness": "diagnostics/",
    "segmentation": "training-step/",
    "wandb": "command-line/",
}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which runs the search of the site")
def test_a_search_finds_its_page_first(site):
    command = ["node", str(ROOT / "tools" / "search.js"), str(site), *FIRST]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [json.loads(line)[0].split("#")[0] for line in done.stdout.splitlines()]
    assert dict(zip(FIRST, found, strict=True)) == FIRST


@pytest.mark.parametrize("module", [ausam, ausam.diagnostics], ids=lambda m: m.__name__)
def test_the_reference_has_every_public_name(site, module):
    pages = [*(site / "api").rglob("index.html"), site / "methods-and-policies" / "index.html"]
    text = "".join(page.read_text() for page in pages)
    headings = {name.split(".")[-1] for name in re.findall(r'<h[2-5] id="(ausam[^"]*)"', text)}
    tables = {"METHODS", "POLICIES", "SIGNALS"}  # dicts and tuples: named in the text
    assert set(module.__all__) - tables - headings == set()
    assert [name for name in tables & set(module.__all__) if f"<code>{name}</code>" not in text] == []
