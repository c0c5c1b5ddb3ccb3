"""The pictures of flagged labels, and the sentence below them: what README's first block finds. ``make figures``.

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
    """Run README's first block, draw the first eight labels that it flags, and write the sentence below them."""
    page = ROOT / "README.md"
    text = page.read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    if block is None:
        raise LookupError("README.md has no block of Python.")
    scope: dict[str, Any] = {}
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(block[1], str(page), "exec"), scope)
    errors = scope["audit"].label_errors()
    wrong, found = scope["wrong"], torch.as_tensor(errors.index)
    for name, dark in (("flagged.png", False), ("flagged-dark.png", True)):
        tiles = [
            tile(scope["x"][i].reshape(8, 8), dark, f"labelled {scope['labels'][i]}", f"likely {errors.likely[i]}")
            for i in errors.index[:8]
        ]
        width, height = tiles[0].size
        picture = Image.new("RGBA", (len(tiles) * width, height), (0, 0, 0, 0))
        for i, one in enumerate(tiles):
            picture.paste(one, (i * width, 0))
        picture.save(PICTURES / name, optimize=True)
    caption = (
        f"<sub>The first eight of {len(found)} flagged digits. {int(wrong.sum())} of 1,000 labels were wrong, and "
        f"{int(wrong[found].sum())} of them were flagged.</sub>"
    )
    filled = re.sub(
        r"(<!-- caption -->\n).*?(<!-- /caption -->)", lambda m: f"{m[1]}{caption}\n{m[2]}", text, flags=re.DOTALL
    )
    page.write_text(filled)


def tile(pixels: torch.Tensor, dark: bool, *lines: str) -> Image.Image:
    """One digit, black on white or white on black, with its given and its likely label below."""
    ink = (255 * (pixels if dark else 1 - pixels)).to(torch.uint8).numpy()
    digit = Image.fromarray(ink).resize((112, 112), Image.Resampling.NEAREST)
    made = Image.new("RGBA", (140, 182), (0, 0, 0, 0))
    made.paste(digit, (14, 8))
    draw = ImageDraw.Draw(made)
    colours = ((240, 120, 100), (90, 200, 150)) if dark else ((200, 60, 40), (20, 130, 90))
    for i, line in enumerate(lines):
        draw.text((70, 136 + 26 * i), line, anchor="mm", font=ImageFont.load_default(size=23), fill=colours[i])
    return made


if __name__ == "__main__":
    flagged()
