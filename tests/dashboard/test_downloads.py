"""Tables as files, and charts as pictures: what is in them, and that nothing in them is more than text."""

import dataclasses
import io
import re
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from streamlit.testing.v1 import AppTest

from dashboard import downloads, show
from dashboard.table_formats import _LATEX, FORMATS, one_line, to_csv, to_latex, to_markdown, to_parquet
from dashboard.tables import summary_table

HOSTILE = [
    "=HYPERLINK(1)",
    "@SUM(1)",
    "＝1+1",
    "\n=1",
    "a|b `c` **d** <script>e</script> [f](javascript:g) ![h](http://x.invalid)",
    "50% of $x_1^2$ & #2 {a} ~ \\input{/etc/passwd} \\\\ [1] *",
    "two\nlines\r\nand\ttab \x00 \x1b[31m \u202e",
    "naïve – 日本語 ＋",
    "&lt;b&gt; https://x.invalid www.x.invalid",
]


def read_markdown(text: bytes) -> list[list[str]]:
    """The cells as a viewer shows them; anything but text in one is an error."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text.decode()):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            assert {child.type for child in token.children or []} <= {"text", "text_special"}, token.children
            rows[-1].append("".join(child.content for child in token.children or []))
        else:
            assert token.type.startswith(("table", "thead", "tbody", "tr", "th", "td")), token.type
    return rows


def read_latex(text: str) -> str:
    """The text that LaTeX would set."""
    back = {written: sign for sign, written in _LATEX.items()}
    parts = re.compile("|".join(re.escape(written) for written in sorted(back, key=len, reverse=True)))
    assert not set(parts.sub("", text)) & set("\\&%$#_{}~^"), text
    return parts.sub(lambda found: back[found[0]], text)


@pytest.fixture
def hostile():
    return pd.DataFrame({"text": HOSTILE, "n": range(len(HOSTILE))})


def test_csv_starts_no_formula_and_keeps_the_rest(hostile):
    read = pd.read_csv(io.BytesIO(to_csv(hostile)))
    assert len(read) == len(HOSTILE)
    assert all(text[0] == "'" for text in read["text"][:4])
    assert read["text"][4] == HOSTILE[4]
    assert "naïve – 日本語" in read["text"][7]
    assert b"\0" not in to_csv(hostile)


def test_parquet_keeps_types_and_missing_values():
    when = datetime(2030, 1, 1, tzinfo=UTC)
    frame = pd.DataFrame(
        {
            "count": pd.Series([1, None], dtype=object),
            "share": [0.1, np.nan],
            "text": ["=1", "two"],
            "when": [when, None],
            "mixed": [1, "one"],
            "nothing": [None, None],
            "flag": [True, False],
        }
    )
    table = pq.read_table(io.BytesIO(to_parquet(frame)))
    kinds = {field.name: str(field.type) for field in table.schema}
    assert kinds["count"] == "int64"
    assert kinds["flag"] == "bool"
    assert kinds["when"].startswith("timestamp")
    rows = table.to_pylist()
    assert rows[0]["share"] == 0.1
    assert rows[1]["share"] is None
    assert rows[0]["text"] == "=1"  # nothing runs what is in a Parquet file
    assert rows[0]["when"] == when
    assert [row["mixed"] for row in rows] == ["1", "one"]


def test_markdown_cells_are_text(hostile):
    rows = read_markdown(to_markdown(hostile))
    assert rows[0] == ["text", "n"]
    assert [row[0] for row in rows[1:]] == [one_line(text) for text in HOSTILE]


def test_latex_cells_are_text(hostile):
    lines = to_latex(hostile).decode().splitlines()
    begin = lines.index("\\midrule") + 1
    rows = lines[begin : lines.index("\\bottomrule")]
    for line, text in zip(rows, HOSTILE, strict=True):
        assert line.endswith(" \\\\")
        cell = line.removesuffix(" \\\\").rpartition(" & ")[0]
        assert read_latex(cell) == one_line(text)
    assert "\\begin{tabular}{lr}" in lines
    assert "日本語" in "\n".join(lines)


@given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_any_text_stays_a_cell(texts):
    frame = pd.DataFrame({"a": texts, "b": 1})
    assert [row[0] for row in read_markdown(to_markdown(frame))[1:]] == [one_line(text) for text in texts]
    assert to_latex(frame).decode().count("\\\\\n") == len(texts) + 1
    assert pq.read_table(io.BytesIO(to_parquet(frame))).num_rows == len(texts)
    to_csv(frame)


def test_numbers_as_people_read_them_and_dashes():
    frame = pd.DataFrame({"x": [0.123456789, 1234567.25, np.nan], "y": [1, None, 3], "z": [True, False, None]})
    rows = read_markdown(to_markdown(frame))
    assert [row[0] for row in rows[1:]] == ["0.123457", "1234567", "–"]
    assert [row[1] for row in rows[1:]] == ["1", "–", "3"]
    assert [row[2] for row in rows[1:]] == ["yes", "no", "–"]
    assert b"|---:|---:|---|" in to_markdown(frame)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.suffix)
def test_odd_frames(form, cells):
    for frame in (
        pd.DataFrame(),
        pd.DataFrame(columns=["a", "a"]),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        summary_table([]),
        summary_table(cells),
        pd.DataFrame({"lists": [[1, 2], None], "big": [2**70, 1]}),
    ):
        assert isinstance(form.render(frame), bytes)


def test_file_names():
    assert downloads.file_name("HBM × eviction / map") == "tiercache-hbm-eviction-map"
    assert downloads.file_name("…") == "tiercache-table"


def page() -> None:
    import pandas
    import plotly.graph_objects
    import streamlit

    from dashboard.downloads import downloads
    from dashboard.show import picture_choice, show

    table = pandas.DataFrame({"a": [1]})
    downloads(table, "numbers")
    downloads(table, "numbers", streamlit.columns(2)[0], key="again")
    show(plotly.graph_objects.Figure(), alt="nothing", name="An Odd / Name")
    picture_choice()


def chart_settings(app):
    return app.get("plotly_chart")[0].proto.config


def test_a_page_offers_files_without_making_them(monkeypatch):
    def made(frame):
        raise AssertionError("a file was made that nobody asked for")

    monkeypatch.setattr(downloads, "FORMATS", [dataclasses.replace(form, render=made) for form in FORMATS])
    app = AppTest.from_function(page).run()
    assert not app.exception
    buttons = app.get("download_button")
    assert [button.proto.label for button in buttons] == ["CSV", "Parquet", "Markdown", "LaTeX"] * 2


def test_the_kind_of_picture_is_remembered():
    app = AppTest.from_function(page).run()
    assert '"format": "svg"' in chart_settings(app)
    assert "tiercache-an-odd-name" in chart_settings(app)
    app.segmented_control[0].set_value("png").run()
    assert '"format": "png"' in chart_settings(app)
    assert '"scale": 2' in chart_settings(app)
    assert '"format": "png"' in chart_settings(app.run())


def test_a_chart_needs_words():
    with pytest.raises(ValueError, match="words"):
        show.show(go.Figure(), alt=" ", name="x")


def test_files_come_out_of_a_browser(browsing, browser, serve):
    tab = browsing.Tab.open(browser, serve("fill"), color_scheme="dark")
    tab.visit("compare")
    chart = tab.page.locator(".js-plotly-plot").first
    chart.hover()
    with tab.page.expect_download() as picture:
        chart.locator("[data-title^='Download plot']").click()
    assert picture.value.suggested_filename == "tiercache-accuracy-against-resident-memory.svg"
    drawn = picture.value.path().read_text(encoding="utf-8")
    ground = re.search(r"<rect [^>]*fill: rgb\((\d+), \d+, \d+\); fill-opacity: 1;", drawn)
    assert ground is not None  # a picture stands alone: its ground is the theme's, not the paper's
    assert int(ground[1]) < 64
    tab.page.get_by_role("button", name="Download").last.click()
    with tab.page.expect_download() as table:
        tab.page.get_by_role("button", name="CSV").last.click()
    assert table.value.suggested_filename == "tiercache-comparison.csv"
    assert len(pd.read_csv(table.value.path())) == 10
    tab.close()
