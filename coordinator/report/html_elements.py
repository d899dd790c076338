"""Elements of a self-contained HTML page: escaped text, tables, figures, and the page around them.

Texts come from other machines (names, boards, reasons), so every text is escaped; only `Html` is
not. The page loads nothing, and its policy forbids that it could.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from federated.safe_text import make_safe

__all__ = [
    "Html",
    "escape",
    "join_parts",
    "make_code",
    "make_details",
    "make_figure",
    "make_list",
    "make_page",
    "make_paragraph",
    "make_section",
    "make_table",
    "make_tiles",
    "make_words",
]


LONG = 40  # characters of a cell that is broken into lines


class Html(str):
    """HTML that is safe to put into the page."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Return a text as HTML, on one line and without characters that change what a reader sees.
    HTML is returned as it is.
    """
    return text if isinstance(text, Html) else Html(html.escape(make_safe(str(text))))


def join_parts(parts: Iterable[object]) -> Html:
    return Html("".join(map(escape, parts)))


def make_paragraph(*parts: object, kind: str = "") -> Html:
    return Html(
        f'<p class="{kind}">{join_parts(parts)}</p>' if kind else f"<p>{join_parts(parts)}</p>"
    )


def make_words(text: str) -> Html:
    """Return a command or a name as code within a text."""
    return Html(f"<code>{escape(text)}</code>")


def make_code(lines: Sequence[str]) -> Html:
    """Return lines to copy: longer ones than `escape` allows are not cut."""
    safe = (html.escape(make_safe(line, None)) for line in lines)
    return Html("<pre><code>" + "\n".join(safe) + "</code></pre>")


def make_list(items: Iterable[object]) -> Html:
    return Html("<ul>" + "".join(f"<li>{escape(one)}</li>" for one in items) + "</ul>")


def make_details(summary: object, *parts: object) -> Html:
    return Html(f"<details><summary>{escape(summary)}</summary>{join_parts(parts)}</details>")


def make_section(title: object, *parts: object) -> Html:
    return Html(f"<section><h2>{escape(title)}</h2>{join_parts(parts)}</section>")


def make_tiles(tiles: Iterable[tuple[str, object]]) -> Html:
    """Return a row of headline numbers. tiles: label and value of each."""
    cells = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in tiles)
    return Html(f'<dl class="tiles">{"".join(cells)}</dl>')


def make_table(
    heads: Sequence[object], rows: Iterable[Sequence[object]], numbers: str = ""
) -> Html:
    """Return a table, which scrolls sideways where it does not fit. numbers: digits of the columns,
    from 0, that are aligned to the right.
    """
    right = set(map(int, numbers.split()))

    def choose_class(column: int, cell: object) -> str:
        if column in right:
            return ' class="n"'
        return ' class="t"' if not isinstance(cell, Html) and len(str(cell)) > LONG else ""

    def fill(tag: str, cells: Sequence[object]) -> str:
        made = (
            f"<{tag}{choose_class(column, cell)}>{escape(cell)}</{tag}>"
            for column, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(fill("td", row) for row in rows)
    head = fill("th", heads)
    return Html(
        f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
    )


def make_figure(light: Path, dark: Path, what: str) -> Html:
    """Return a picture with a version for dark screens. what: it shows, for those who cannot see
    it.
    """
    return Html(
        f'<figure class="wide"><picture><source media="(prefers-color-scheme: dark)" '
        f'srcset="{encode_image(dark)}"><img src="{encode_image(light)}" alt="{escape(what)}">'
        "</picture></figure>"
    )


def encode_image(file: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def make_page(title: str, *parts: object) -> Html:
    """Return the whole page."""
    return Html(
        f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{join_parts(parts)}
</main>
</body>
</html>
"""
    )


POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root { --page: #f6f7f9; --card: #ffffff; --text: #1c2128; --quiet: #5b6673; --line: #dde2e8;
  --good: #1a7f37; --bad: #b3261e; --fed: #1f6feb; --alone: #b35900; --central: #6e7781; }
@media (prefers-color-scheme: dark) {
  :root { --page: #101317; --card: #1b1f25; --text: #e6e9ee; --quiet: #9aa5b1; --line: #333a44;
    --good: #56d364; --bad: #ff8178; --fed: #6cb0ff; --alone: #f0a35e; --central: #a8b1bb; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1rem 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 .6rem; }
p { margin: .4rem 0 .8rem; max-width: 48rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; max-width: 48rem; }
.quiet { color: var(--quiet); font-size: .9rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1rem 1.2rem; margin: 1rem 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem;
  margin: 1rem 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .6rem .8rem; }
dt { color: var(--quiet); font-size: .85rem; }
dd { margin: 0; font-size: 1.25rem; font-weight: 600; }
.wide { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem .35rem 0;
  border-bottom: 1px solid var(--line); }
td, th { white-space: nowrap; } td.t { white-space: normal; min-width: 16rem; }
th { color: var(--quiet); font-weight: 500; }
.n { text-align: right; white-space: nowrap; }
figure img { display: block; width: 100%; min-width: 30rem; border-radius: .4rem; }
pre { background: var(--page); border: 1px solid var(--line); border-radius: .4rem;
  padding: .7rem; overflow-x: auto; font-size: .85rem; }
p code { overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--quiet); }
svg.gain { width: 11rem; height: 1.1rem; display: block; }
.fed { fill: var(--fed); color: var(--fed); } .alone { fill: var(--alone); color: var(--alone); }
.central { fill: var(--central); color: var(--central); }
.track { stroke: var(--line); stroke-width: 2; } .good { color: var(--good); }
.bad { color: var(--bad); } footer { color: var(--quiet); font-size: .85rem; }
"""
