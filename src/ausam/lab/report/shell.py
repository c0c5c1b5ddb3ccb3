"""What every page shares: its style, its head, and that nothing is fetched from anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from ausam.lab.report.chart_text import esc

CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#59626d;--rule:#d5dae0;--wash:#f3f6f9;
--c0:#0072b2;--c1:#d55e00;--c2:#00805d;--c3:#b8538f;--c4:#8a6d00;--c5:#6a4fc0;--c6:#2b98d4;--c7:#5a6068}
@media(prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e8ecf1;--soft:#a3adb8;--rule:#38414b;--wash:#1d232a;
--c0:#4db2f0;--c1:#ff8b4a;--c2:#3fd0a2;--c3:#f29ccc;--c4:#e8c547;--c5:#b3a1ff;--c6:#9fdcff;--c7:#b4bcc6}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:var(--page);padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .25rem}h2{font-size:1.2rem;margin:2.5rem 0 .5rem}
p{margin:.5rem 0}.soft,.note{color:var(--soft)}.note{font-size:.875rem}
.lead{font-size:1.1rem;border-left:4px solid var(--c0);padding:.25rem 0 .25rem 1rem;margin:1.25rem 0}
.open{border:1px solid var(--c1);border-radius:6px;padding:.5rem .75rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;overflow-wrap:normal}
th,td{padding:.45rem .7rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap;vertical-align:top}
thead th{color:var(--soft);font-size:.85rem;font-weight:600;vertical-align:bottom;white-space:normal}
th:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
th:first-child{padding-left:.5rem}tr.ours>*,tr.ours>th:first-child{background:var(--wash)}
th small{display:block;color:var(--soft);font-weight:400;white-space:normal;max-width:15rem;line-height:1.3}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:0 1.5rem;margin:.3rem 0;font-size:.9rem}
dl div{display:flex;justify-content:space-between;gap:1rem;border-bottom:1px solid var(--rule);padding:.2rem 0}
dt{color:var(--soft);white-space:nowrap}dd{margin:0;text-align:right}h3{font-size:1rem;margin:1rem 0 0}
code{display:block;background:var(--wash);padding:.6rem .75rem;border-radius:6px;font-size:.9rem}
svg text{fill:var(--ink)}svg .t{fill:var(--soft)}svg text.strong{font-weight:700}
.halo{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}
.frame{fill:none;stroke:var(--rule)}.grid{stroke:var(--rule);stroke-width:.6}
.front{fill:none;stroke:var(--soft);stroke-dasharray:4 4}
.bar{fill:none;stroke-width:1.4;opacity:.65}.leader{fill:none;stroke:var(--soft);stroke-width:.9}.band{opacity:.14}
.line{fill:none;stroke-width:1.8}.line.strong{stroke-width:3}.rest{stroke-dasharray:1 4;opacity:.8}
.pair{stroke:var(--soft);stroke-width:2}
.narrow{display:none}@media(max-width:40rem){.wide{display:none}.narrow{display:block;max-width:29rem}
body{padding-top:1rem}h1{font-size:1.4rem}.lead{font-size:1rem}th,td{padding:.4rem .5rem}th small{display:none}}
"""


def document(title: str, body: Sequence[str], width: int = 54) -> str:
    """A page that stands alone, at most ``width`` rem wide."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{esc(title)}</title><style>{CSS}:root{{--page:{width}rem}}</style></head>"
        f"<body>\n{chr(10).join(filter(None, body))}\n</body></html>\n"
    )
