"""The picture of flagged labels, and the sentence below it: what README's first block of code finds. ``make figures``.

Pictures of research/ are drawn by its scripts.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"


def flagged() -> None:
    """Run README's first block, draw the first twelve labels that it flags, and write the sentence below them."""
    page = ROOT / "README.md"
    text = page.read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    if block is None:
        raise LookupError("README.md has no block of Python.")
    scope: dict[str, Any] = {}
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(block[1], str(page), "exec"), scope)
    errors = scope["errors"]
    wrong, found = scope["wrong"], torch.as_tensor(errors.index)
    tiles = [
        tile(scope["x"][i].reshape(8, 8), f"labelled {scope['labels'][i]}", f"likely {errors.likely[i]}")
        for i in errors.index[:12]
    ]
    width, height = tiles[0].size
    picture = Image.new("RGBA", (6 * width, 2 * height), (0, 0, 0, 0))
    for i, one in enumerate(tiles):
        picture.paste(one, (i % 6 * width, i // 6 * height))
    picture.save(PICTURES / "flagged.png", optimize=True)
    caption = (
        f"<sub>The first twelve of {len(found)} flagged digits. {int(wrong.sum())} of 1,000 labels were wrong, and "
        f"{int(wrong[found].sum())} of them were flagged.</sub>"
    )
    filled = re.sub(
        r"(<!-- caption -->\n).*?(<!-- /caption -->)", lambda m: f"{m[1]}{caption}\n{m[2]}", text, flags=re.DOTALL
    )
    page.write_text(filled)


def tile(pixels: torch.Tensor, *lines: str) -> Image.Image:
    """One digit, with words below it that are readable on a light and on a dark page."""
    digit = Image.fromarray((255 * (1 - pixels)).to(torch.uint8).numpy()).resize((112, 112), Image.Resampling.NEAREST)
    made = Image.new("RGBA", (140, 176), (0, 0, 0, 0))
    made.paste(digit, (14, 8))
    draw = ImageDraw.Draw(made)
    for i, line in enumerate(lines):
        font = ImageFont.load_default(size=18)
        draw.text((70, 132 + 20 * i), line, anchor="mm", font=font, fill=(200, 60, 40) if i == 0 else (20, 130, 90))
    return made


if __name__ == "__main__":
    flagged()
