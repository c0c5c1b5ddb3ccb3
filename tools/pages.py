"""What MkDocs cannot do by itself: notebooks as pages, CONTRIBUTING.md with the site's links, guides found first."""

from __future__ import annotations

import json
import re
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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make a page of each notebook."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            files.remove(file)
            files.append(Notebook(file.src_uri, config.docs_dir, config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(text: str, page: Page, **_: Any) -> str:
    """Fill contributing.md with CONTRIBUTING.md; links to files outside docs become their names.

    A search finds the guides before the reference, and both before the appendices.
    """
    for start, weight in (("api/", 0.6), ("results/", 0.3), ("changelog", 0.3)):
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": weight}
    if page.file.src_uri != "contributing.md":
        return text
    whole = Path("CONTRIBUTING.md").read_text(encoding="utf-8").replace("](CHANGELOG.md)", "](changelog.md)")
    whole = whole.replace("](docs/", "](")
    return re.sub(r"\[([^]]+)\]\(([A-Z_]+(?:\.md)?)\)", r"\1 (`\2`)", whole)
