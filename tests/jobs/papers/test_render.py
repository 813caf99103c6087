"""Hostile text in a report stays text, in Markdown and in HTML."""

from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from jobs.papers.blocks import Bullets, Figure, Heading, Links, Paragraph, Table
from jobs.papers.render import markdown, page

HOSTILE = [
    "<script>alert(1)</script>",
    "![x](http://evil/x.png)",
    "[a](javascript:alert(1))",
    "a | b\n\n# c",
    "`` ` ``",
    '"><img src=x onerror=alert(1)>',
    "&lt;b&gt; **x** __y__ ~~z~~",
    "\x1b[31m\x00\u202e",
    "http://evil.example/",
    "1. x",
    "\\",
]
ALLOWED = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "ul", "li", "div", "code"}
ALLOWED |= {"table", "thead", "tbody", "tr", "th", "td"}


class Tags(HTMLParser):
    """Every tag of a page with its attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.said += data


def document(text: str) -> tuple[Heading | Paragraph | Bullets | Table, ...]:
    table = Table(("a", text), ((text, "1"), ("b", text)), (text,), (1,))
    return Heading(1, text), Paragraph(text), Bullets((text, "x")), table, Heading(2, "the end")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_page_holds_no_tag_but_its_own(text: str) -> None:
    found = Tags(page(document(text)))
    assert found.tags <= ALLOWED
    assert found.attributes <= {"lang", "charset", "http-equiv", "content", "class"}


@given(st.text(max_size=60))
def test_no_text_becomes_a_tag_in_html(text: str) -> None:
    assert Tags(page(document(text))).tags <= ALLOWED


@example("---")
@example("- -")
@example("1. one")
@given(st.text(alphabet=st.sampled_from("`|\\<>[]()!*_#~&$: \n-+1.ahtp/"), max_size=40))
def test_no_text_becomes_markup_in_markdown(text: str) -> None:
    parsed = MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(markdown(document(text)))
    kinds = [token.type for token in parsed]
    inline = {child.type for token in parsed for child in token.children or ()}
    assert inline <= {"text", "text_special", "code_inline", "softbreak"}
    assert kinds.count("heading_open") == 2
    assert kinds.count("table_open") == 1
    assert kinds.count("td_open") == 4
    assert kinds.count("list_item_open") == 2
    assert not {"html_block", "fence", "code_block", "blockquote_open", "ordered_list_open", "hr"} & set(kinds)


def test_both_forms_say_the_same() -> None:
    blocks = (
        Heading(1, "Title"),
        Paragraph("p > 0.3"),
        Table(("a", "b"), (("x_y", "1.5"),), ("tiercache compare s",), (1,)),
    )
    text, html = markdown(blocks), Tags(page(blocks)).said
    assert text == "# Title\n\np \\> 0.3\n\n| a | b |\n|---|--:|\n| x\\_y | 1.5 |\n\nFrom: `tiercache compare s`\n"
    for words in ("Title", "p > 0.3", "x_y", "1.5", "From: tiercache compare s"):
        assert words in html


@pytest.mark.parametrize("text", HOSTILE)
def test_figures_and_links_lead_to_their_own_address_only(text: str) -> None:
    blocks = (Figure("figures/a b.svg", text, (text,), ("db/x.py",)), Links(((text, "javascript:x.md"),)))
    inline = [child for token in MarkdownIt().parse(markdown(blocks, "../..")) for child in token.children or ()]
    assert [child.attrGet("src") for child in inline if child.type == "image"] == ["figures/a%20b.svg"]
    targets = [child.attrGet("href") for child in inline if child.type == "link_open"]
    assert targets == ["../../db/x.py", "javascript%3Ax.md"]
    found = Tags(page(blocks))
    assert found.tags <= ALLOWED | {"img", "a"}
    assert found.attributes <= {"lang", "charset", "http-equiv", "content", "class", "src", "alt", "href"}
    assert "db/x.py" not in markdown(blocks), "without a root there is nothing to link to"
