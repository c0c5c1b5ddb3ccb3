"""Check the sentences of README, docs and docstrings: ``make lint``.

A sentence has at most 25 words and no semicolon, and a thing has one name: the field's. CONTRIBUTING.md has the list.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
LONGEST = 25  # words
# What we do not write, and what we write instead.
WORDS = {
    r"\btwins?\b(?!-)": "random-subset baseline",
    r"\bprices?\b": "cost",
    r"\bby heart\b": "memorise",
    r"\bjudge[ds]?\b": "evaluate",
    r"\brefuse[sd]?\b": "raise an error",
    r"\banew\b": "again",
    r"\bwhere labels are wrong\b": "with wrong labels",
    r"\bthe guessing loss\b": "the chance-level loss",
    r"\bhalves\b": "half of the samples",
    r"\bsuspects\b(?!:)": "flagged samples",
}
SKIPPED = re.compile(r"^---\n.*?\n---\n|```.*?```|<!--.*?-->|<[^>]+>", re.DOTALL)
LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]+`")


def pieces(page: str) -> Iterator[str]:
    """The paragraphs, headings, list items and table cells of a page, with code and links as single words."""
    text = LINK.sub(r"\1", CODE.sub("code", SKIPPED.sub("", page)))
    text = re.sub(r"\n(?=[^\n]*\n)(    [^\n]*\n)+", "\n\n", text)  # indented code
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", text):
        if block.lstrip().startswith("|"):
            yield from (cell.strip() for line in block.splitlines() for cell in line.split("|"))
        else:
            yield " ".join(block.split())


# What a docstring has beside sentences: code and roles, examples with what they print, lines of formulas.
QUOTED = re.compile(r"``[^`]+``|:\w+:`[^`]+`")
EXAMPLE = re.compile(r"^ *>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
FORMULA = re.compile(r"^.*(?: = | := |<-|  \w+:  ).*$|^.*\w:  +.*$", re.MULTILINE)


def docstring_pieces(source: str) -> Iterator[str]:
    """The paragraphs and arguments of the docstrings of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            text = FORMULA.sub("", QUOTED.sub("code", EXAMPLE.sub("", ast.get_docstring(node) or "")))
            for block in re.split(r"\n\s*\n|\n(?=\s*[-*] )|\n *(?:\w+: |\w+:\n)", text):
                yield " ".join(block.split())


def complaints(page: str, of: Callable[[str], Iterator[str]] = pieces) -> Iterator[str]:
    """What is wrong with each sentence."""
    for piece in of(page):
        for sentence in re.split(r"(?<=[.!?])[*_)\"]*\s+", piece):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > LONGEST:
                yield f"{len(words)} words: {sentence}"
            if ";" in sentence:
                yield f"a semicolon: {sentence}"
            for word, better in WORDS.items():
                if found := re.search(word, sentence, re.IGNORECASE):
                    yield f"{found[0]!r}, write {better!r}: {sentence}"


def main() -> int:
    """Print the sentences to be rewritten; 1 if there is one."""
    found = [f"{page.relative_to(ROOT)}: {what}" for page in PAGES for what in complaints(page.read_text())]
    for module in sorted(ROOT.glob("src/**/*.py")):
        found += [f"{module.relative_to(ROOT)}: {what}" for what in complaints(module.read_text(), docstring_pieces)]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
