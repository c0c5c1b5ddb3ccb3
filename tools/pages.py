"""What MkDocs cannot do by itself.

Notebooks as pages, drawings for dark pages, methods and policies from their docstrings, CONTRIBUTING.md, and
guides that a search finds first.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


class Notebook(File):
    """A notebook that is a page, so that other pages link to the file that GitHub shows as well."""

    def is_documentation_page(self) -> bool:
        """Yes: not a file to be copied."""
        return True

    @property
    def content_string(self) -> str:
        """The notebook as Markdown."""
        return markdown(json.loads(Path(self.abs_src_path or "").read_text(encoding="utf-8")))


def markdown(notebook: dict[str, Any]) -> str:
    """Its cells as Markdown: code in fences, the text and the picture of each output below."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts.append(f"```python\n{source}\n```")
            parts += [shown(output) for output in cell["outputs"]]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(output: dict[str, Any]) -> str:
    """One output of a cell: what was printed, a drawing, or the text of a value."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return f'<div class="drawing">{"".join(data["image/svg+xml"]).strip()}</div>'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text else ""


# The colours of the drawings on a light page, and those on a dark one.
DARK = {
    "#1f2430": "#e8eaf0", "#4a5163": "#b6bccb", "#8a93a8": "#79829a", "#b3b9c9": "#5a6277",
    "#f7f8fc": "#1e2129", "#f1f2f6": "#262a34", "#fff0e0": "#3d2c1a", "#fff": "#2a2e39",
    "#e4ecff": "#22305a", "#e3f5e9": "#1b3a29", "#3f63c9": "#7f9bf0", "#c2671a": "#e09a5a", "#2c8a52": "#5fc28a",
}  # fmt: skip


# A picture of docs/pictures, each of which has a variant for dark pages.
PICTURE = re.compile(r"!\[([^]]*)\]\((pictures/[\w-]+)\.(svg|png)\)")


def dark(drawing: str) -> str:
    """A drawing of docs/pictures for dark pages."""
    return re.sub(r"#[0-9a-f]{6}\b|#[0-9a-f]{3}\b", lambda match: DARK.get(match[0], match[0]), drawing)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make a page of each notebook, and a dark variant of each drawing."""
    for file in list(files):
        if file.src_uri.startswith("pictures/") and file.src_uri.endswith(".svg"):
            name = file.src_uri.replace(".svg", "-dark.svg")
            files.append(File.generated(config, name, content=dark(file.content_string)))
        if file.src_uri.endswith(".ipynb"):
            files.remove(file)
            files.append(Notebook(file.src_uri, config.docs_dir, config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(text: str, page: Page, **_: Any) -> str:
    """Show each picture in the colours of the page, and fill contributing.md with CONTRIBUTING.md.

    A search finds the guides before the reference, and both before the appendices. A link to a file outside docs
    becomes its name.
    """
    for start, weight in (("api/", 0.3), ("changelog", 0.3)):
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": weight}
    text = PICTURE.sub(r"![\1](\2.\3#only-light)\n![\1](\2-dark.\3#only-dark)", text)
    if page.file.src_uri == "methods-and-policies.md":
        return re.sub(r"<!-- (methods|policies) -->", lambda match: catalogue(match[1]), text)
    if page.file.src_uri != "contributing.md":
        return text
    whole = Path("CONTRIBUTING.md").read_text(encoding="utf-8").replace("](CHANGELOG.md)", "](changelog.md)")
    whole = whole.replace("](docs/", "](")
    return re.sub(r"\[([^]]+)\]\(([A-Z_]+(?:\.md)?)\)", r"\1 (`\2`)", whole)


def on_page_content(text: str, **_: Any) -> str:
    """Keep a flag such as ``--policy`` on one line: a browser would break it behind its hyphens."""

    def whole(code: re.Match[str]) -> str:
        return re.sub(r"--[a-z-]+", r'<span class="flag">\g<0></span>', code[0])

    return re.sub(r"<code>[^<]*</code>", whole, text)


# The slow transcriptions that the tests compare with: the shortest explanation of a method that has one.
TRANSCRIPTIONS = {
    "SAM": "sam_rule",
    "GSAM": "gsam_rule",
    "FriendlySAM": "friendly_rule",
    "LookSAM": "looksam_rule",
    "ESAM": "esam_rule",
    "KSAM": "ksam_rule",
    "WSAM": "wsam_rule",
    "PreviousGradientSAM": "previous_gradient_rule",
}


def catalogue(kind: str) -> str:
    """A table of all methods or policies, and below it a section for each, whose docstring unfolds."""
    sys.path.insert(0, "src")
    import ausam

    table = ausam.METHODS if kind == "methods" else ausam.POLICIES
    rows = [f"| | what it does | {'cost' if kind == 'methods' else 'chooses in'} |", "|---|---|---|"]
    sections = []
    for name, made in table.items():
        first = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", (made.__doc__ or "").split("\n")[0])
        rows.append(f"| [`{name}`](#{name.lower()}) | {first} | {cost_of(made, kind)} |")
        reference = f"::: {made.__module__}.{name}\n    options:\n      members: false\n      heading_level: 5\n"
        reference += "      show_root_toc_entry: false\n"
        if name in TRANSCRIPTIONS:
            reference += "\nThe slow transcription that the tests compare it with:\n\n"
            reference += f"```python\n{source(TRANSCRIPTIONS[name])}\n```\n"
        box = f'??? abstract "Formula, example, settings"\n\n{indented(reference)}\n'
        sections.append(f"### {name} {{ #{name.lower()} }}\n\n{box}")
    return "\n".join(rows) + "\n\n" + "\n".join(sections)


def cost_of(made: Any, kind: str) -> str:
    """Samples through forward and backward per sample of the batch with the default settings; a policy's scope."""
    if kind == "policies":
        return "each mini-batch" if made.scope == "batch" else "the epoch"
    try:
        forward, backward = made().passes
    except TypeError:  # a setting without a default
        forward, backward = made.passes
    return f"{forward:g}, {backward:g}"


def source(name: str) -> str:
    """The code of a function of the tests of the methods."""
    for path in Path("tests/methods").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return ast.get_source_segment(text, node) or ""
    raise LookupError(f"tests/methods has no function {name}. Rename it in tools/pages.py, too.")


def indented(text: str) -> str:
    """The text as the content of a box."""
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
