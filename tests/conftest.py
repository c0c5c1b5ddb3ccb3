"""What many tests share: charts that nobody looks at, and a run that takes long to train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
LOOKED_AT = TESTS / "lab" / "report"
MAKE_PAGES = [TESTS / "lab", TESTS / "reliability"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """In ``make test``, pages that a command writes on its way have empty charts; the tests of the report draw them.

    Around the whole protocol, because fixtures of a module run commands too. ``make test-all`` draws everything.
    """
    path = item.path
    makes_pages = any(path.is_relative_to(folder) for folder in MAKE_PAGES) and not path.is_relative_to(LOOKED_AT)
    if not item.config.option.markexpr or not makes_pages:
        return (yield)
    from ausam_lab.report import html  # here: the core is tested without what the lab needs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "javascript", lambda: "")
        return (yield)
