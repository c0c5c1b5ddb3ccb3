"""Check that each figure in a sentence of README and docs equals its result file: ``make lint``.

Below a paragraph or a list item stands a comment that says where its figures come from:

    <!-- figures
    95.5 % = equal-cost mean digits-noisy sgd@0.2x0.5
    5 × = json research/theory/digits.json flatness.0.value
    1.1 % : benchmarks/overhead.py, version 0.3, two idle cores
    -->

Left of ``=`` or ``:`` is the text as the paragraph has it. Behind ``=`` is a source of this file, whose values must
equal the numbers of the text, rounded as these are. Behind ``:`` is how a figure without a file was measured. A decimal
number, a percentage or a share such as "three of the four" that no comment explains is an error, too.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import runpy
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
# What a reader does not take for a result: code, tables (make figures fills them), conditions, intervals' confidence.
NOT_RESULTS = re.compile(
    r"```.*?```|<!--.*?-->|`[^`]*`|\]\([^)]*\)|<sub>.*?</sub>|^\|[^\n]*$|^#[^\n]*$"
    r"|95 % (?:t )?interval|at 5 %|\d+ % (?:of the labels )?wrong"
    r"|AUSAM-0\.\d|(?:Apache|version|TRL|PyTorch|Python|cleanlab)[ -]\d\.\d+",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WORDS = {word: str(i) for i, word in enumerate(NUMBERS)}
COUNT = rf"(?:{'|'.join(WORDS)}|\d[\d,]*)"
FIGURE = re.compile(
    rf"[+−-]?\d[\d,]*\.\d+(?: %)?|[+−-]?\d[\d,]* %|\b{COUNT} of (?:the |these )?{COUNT}\b|\d+ (?:methods|policies)"
)
COMMENT = re.compile(r"<!-- figures\n(.*?)-->", re.DOTALL)


@functools.cache
def script(path: str) -> dict[str, Any]:
    """The functions of a script of research/."""
    return runpy.run_path(str(ROOT / path))


@functools.cache
def loaded(path: str) -> Any:
    """A file of results."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def equal_cost(what: str, problem: str, row: str, other: str = "") -> list[float]:
    """The mean of a row, or its difference from another one with the ends of the interval."""
    benchmark = script("research/equal_cost/benchmark.py")
    found = next(p for p in benchmark["read"]() if p.name == problem)
    scores = found.entry(row).scores
    if what == "mean":
        return [statistics.fmean(scores)]
    d = benchmark["paired"](scores, found.entry(other).scores)
    return [d.mean] if what == "minus-mean" else [d.mean, d.low, d.high]


def wins(row: str, *rivals: str) -> list[float]:
    """On how many problems a row is better than its rival there, given as PROBLEM/ROW, and of how many."""
    lows = [equal_cost("minus", problem, row, rival)[1] for problem, rival in (r.split("/", 1) for r in rivals)]
    return [sum(low > 0 for low in lows), len(lows)]


def language_model(n: str, share: str, row: str, other: str) -> list[float]:
    """The difference of two rows in points of accuracy, with the ends of the interval."""
    benchmark = script("research/language_model/benchmark.py")
    runs = [
        r for r in benchmark["runs_of"](benchmark["RESULTS"]) if (r["sentences"], r["wrong"]) == (int(n), float(share))
    ]
    return numbers(benchmark["difference"](runs, row, other, "accuracy", 100))


def predictions(what: str) -> list[float]:
    """Of the audit on stored predictions: the least and largest share of wrong labels among the flagged, in percent."""
    cases = [case for case in loaded("research/label_errors/predictions.json") if case["ausam"]["flagged"]]
    shares = [100 * case["ausam"]["hits"] / case["ausam"]["flagged"] for case in cases]
    return [{"least": min, "most": max}[what](shares)]


def coverage(what: str) -> list[float]:
    """Of the reviews that estimate a share: the least part that covers, in percent."""
    return [min(100 * case[what] for case in loaded("research/label_errors/coverage.json"))]


def failed(n: str, share: str, row: str) -> list[float]:
    """With how many seeds this row of the language model stayed near chance, and of how many."""
    benchmark = script("research/language_model/benchmark.py")
    key = (int(n), float(share), row)
    runs = [r for r in benchmark["runs_of"](benchmark["RESULTS"]) if (r["sentences"], r["wrong"], r["row"]) == key]
    return [sum(r["accuracy"] < 0.55 for r in runs), len(runs)]


def registry() -> list[float]:
    """How many methods and policies there are."""
    sys.path.insert(0, str(ROOT / "src"))
    import ausam

    return [len(ausam.METHODS), len(ausam.POLICIES)]


def from_json(path: str, keys: str) -> list[float]:
    """A number of a JSON file, by its keys."""
    value = loaded(path)
    for key in keys.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return [float(value)]


def printed(path: str, line: str) -> list[float]:
    """The last number of the line of a file of results that starts with this text."""
    (found,) = [one for one in (ROOT / path).read_text(encoding="utf-8").splitlines() if one.startswith(line)]
    return [float(found.split()[-1])]


SOURCES: dict[str, Callable[..., list[float]]] = {
    "equal-cost": equal_cost,
    "wins": wins,
    "language-model": language_model,
    "predictions": predictions,
    "failed": failed,
    "registry": registry,
    "coverage": coverage,
    "json": from_json,
    "printed": printed,
}


def numbers(text: str) -> list[float]:
    """The numbers in a text."""
    return [float(found.replace("−", "-").replace(",", "")) for found in re.findall(r"[+−-]?\d[\d,]*(?:\.\d+)?", text)]


def equal(text: str, values: list[float]) -> bool:
    """Whether the numbers of the text are these values, rounded as they are; words may say the sign."""
    text = re.sub(rf"\b({'|'.join(WORDS)})\b", lambda match: WORDS[match[0]], text)
    shown = re.findall(r"[+−-]?\d[\d,]*(?:\.\d+)?", text)
    if len(shown) != len(values):
        return False
    for one, value in zip(shown, values, strict=True):
        digits = len(one.partition(".")[2])
        (number,) = numbers(one)
        signed = one[0] in "+−-"
        if f"{number:.{digits}f}" != f"{value if signed else abs(value):.{digits}f}":
            return False
    return True


def complaints(page: str) -> Iterator[str]:
    """What does not agree, and what no comment explains."""
    start = 0
    for comment in COMMENT.finditer(page):
        passage = page[start : comment.start()]
        start = comment.end()
        block = re.split(r"\n\s*\n|\n(?=\s*[-*] )", passage.rstrip())[-1]
        explained = NOT_RESULTS.sub(" ", block)
        for line in comment[1].strip().splitlines():
            text, mark, source = re.split(r" ([=:]) ", line, maxsplit=1)
            if text not in " ".join(block.split()):
                yield f"{text!r} is explained, but not in the paragraph above: {' '.join(block.split())[:80]}"
                continue
            explained = " ".join(explained.split()).replace(text, " ")
            if mark == "=":
                name, *arguments = shlex.split(source)
                with contextlib.redirect_stdout(io.StringIO()):
                    values = SOURCES[name](*arguments)
                if not equal(text, values):
                    yield f"{text!r} is {', '.join(f'{v:.4g}' for v in values)} by {source}"
        yield from unexplained(passage[: len(passage.rstrip()) - len(block)] + "\n\n" + explained)
    yield from unexplained(page[start:])


def unexplained(text: str) -> Iterator[str]:
    """The figures of a passage, none of which has a comment."""
    plain = NOT_RESULTS.sub(" ", text)
    for found in FIGURE.finditer(plain):
        around = " ".join(plain[max(0, found.start() - 60) : found.end() + 30].split())
        yield f"{found[0]!r} has no source: ... {around} ..."


def main() -> int:
    """Print what is wrong; 1 if there is anything."""
    found = [f"{page.relative_to(ROOT)}: {what}" for page in PAGES for what in complaints(page.read_text())]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
