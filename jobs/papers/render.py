"""Blocks as Markdown and as one HTML page. All text is taken for text: names may come from anywhere."""

import html
import re
from typing import assert_never
from urllib.parse import quote

from jobs.papers.blocks import Bullets, Document, Figure, Heading, Links, PageBlock, Paragraph, Table
from jobs.printable import printable

_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~&!$]")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: .8rem 0 .2rem; } th, td { border: 1px solid #ccc; padding: .25rem .5rem; }
th { background: #f2f2f2; text-align: left; } td.n { text-align: right; white-space: nowrap; }
.from { color: #555; font-size: 13px; margin: 0 0 1.2rem; } code { font-size: 13px; }
.scroll { overflow-x: auto; }
"""


def markdown(document: Document, root: str | None = None) -> str:
    """`root`: the repository's from where the page lies, so that queries are links; without it they are left out."""
    return "\n\n".join(_markdown(block, root) for block in document) + "\n"


def _markdown(block: PageBlock, root: str | None) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {_plain(block.text)}"
        case Paragraph():
            return _plain(block.text)
        case Bullets():
            return "\n".join(f"* {_plain(item)}" for item in block.items)
        case Table():
            lines = [_row(block.columns)]
            lines.append(
                "|" + "|".join("--:" if i in block.numbers else "---" for i in range(len(block.columns))) + "|"
            )
            lines += [_row(row) for row in block.rows]
            return "\n".join(lines) + "\n\n" + _from(block.sources, block.queries, root)
        case Figure():
            image = f"![{_plain(block.alt)}]({_address(block.file)})"
            return image + "\n\n" + _from(block.sources, block.queries, root)
        case Links():
            return "\n".join(f"* [{_plain(text)}]({_address(target)})" for text, target in block.items)
        case _:
            assert_never(block)


def _from(sources: tuple[str, ...], queries: tuple[str, ...], root: str | None) -> str:
    parts = [_code(source) for source in sources]
    if root is not None:
        parts += [f"[{_plain(name)}]({_address(f'{root}/{name}')})" for name in queries]
    return f"From: {', '.join(parts)}"


def _address(target: str) -> str:
    """A relative address: nothing in it ends the link or names a scheme."""
    return quote(target, safe="/.#-_")


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _plain(text: str) -> str:
    """One line, with every sign that Markdown would obey behind a backslash; also where a line would begin a list."""
    line = _SPECIAL.sub(r"\\\g<0>", _one_line(text))
    line = re.sub(r"(?i)\b(https?|ftp)://", r"\1:\\/\\/", line)
    line = re.sub(r"^(\d+)([.)])(?= |$)", r"\1\\\2", line)  # a list's number
    return re.sub(r"^([-+=])(?=[-= ]|$)", r"\\\1", line)  # a bullet, or a rule


def _code(text: str) -> str:
    """A code span; its fence is longer than any run of backticks inside."""
    line = _one_line(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    blank = " " if line.startswith("`") or line.endswith("`") else ""
    return fence + blank + line + blank + fence


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def page(document: Document) -> str:
    """A page that loads nothing and runs nothing."""
    title = next((block.text for block in document if isinstance(block, Heading)), "Report")
    body = "\n".join(map(_html, document))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _html(block: PageBlock) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{_text(block.text)}</h{block.level}>"
        case Paragraph():
            return f"<p>{_text(block.text)}</p>"
        case Bullets():
            return "<ul>" + "".join(f"<li>{_text(item)}</li>" for item in block.items) + "</ul>"
        case Table():
            head = "".join(f"<th>{_text(name)}</th>" for name in block.columns)
            rows = "\n".join(
                "<tr>" + "".join(_cell(text, i in block.numbers) for i, text in enumerate(row)) + "</tr>"
                for row in block.rows
            )
            sources = ", ".join(f"<code>{_text(source)}</code>" for source in block.sources)
            table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>'
            return f'{table}\n<p class="from">From: {sources}</p>'
        case Figure():
            return f'<p><img src="{_address(block.file)}" alt="{_text(block.alt)}"></p>'
        case Links():
            items = (f'<li><a href="{_address(target)}">{_text(text)}</a></li>' for text, target in block.items)
            return f"<ul>{''.join(items)}</ul>"
        case _:
            assert_never(block)


def _cell(text: str, number: bool) -> str:
    return f'<td class="n">{_text(text)}</td>' if number else f"<td>{_text(text)}</td>"


def _text(text: str) -> str:
    return html.escape(_one_line(text), quote=True)
