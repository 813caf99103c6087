"""The dashboard for those who see little or nothing: contrast, words for charts, labels. Read from the sources, so that
a page that is added is held to it too."""

import ast
import re
from pathlib import Path

import pytest

from dashboard import capacity_figures, curves, drawing, grids, pages
from dashboard.colours import OUTCOME_COLOURS, PRESETS, TIER_COLOURS, contrast, looks, luminance
from dashboard.table_formats import FORMATS

# Streamlit's own, as `test_browser_pages` draws them.
LIGHT, DARK = "#ffffff", "#171614"
PAGES = sorted((Path(__file__).parents[2] / "dashboard").glob("*.py"))
INPUTS = {
    *("selectbox", "multiselect", "text_input", "number_input", "segmented_control", "slider", "select_slider"),
    *("radio", "checkbox", "toggle", "text_area", "pills", "button", "download_button", "popover", "choose", "write"),
}
LOOKS = looks([(f"{name} budget={size}", name) for name in (*PRESETS, "mine", "theirs", "yours") for size in range(9)])
NAMED = {
    **{f"outcome {name}": colour for name, colour in OUTCOME_COLOURS.items()},
    **{f"tier {name}": colour for name, colour in TIER_COLOURS.items()},
    **{f"part {name}": colour for name, (_, colour) in capacity_figures.PARTS.items()},
    **{f"read {name}": colour for name, colour in capacity_figures.READ_COLOURS.items()},
    **{f"policy {label}": look.colour for label, look in LOOKS.items()},
    "faint": drawing.FAINT,
    "faded": curves.FADED,
}


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert luminance("#ff0000") == pytest.approx(0.2126)


@pytest.mark.parametrize("ground", [LIGHT, DARK])
def test_marks_stand_out_in_both_themes(ground):
    weak = {name: round(contrast(colour, ground), 2) for name, colour in NAMED.items() if contrast(colour, ground) < 3}
    assert not weak


# Not marks on the page's ground: steps of a scale, writing and edges on other colours.
ON_OTHER_GROUND = {"#ffffff", "#000000", "#3a3f47", *(colour for _, colour in grids.ACCURACY_COLOURS)}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_so_does_every_colour_that_a_module_names(path):
    named = set(re.findall(r'"(#[0-9a-fA-F]{6})"', path.read_text(encoding="utf-8"))) - ON_OTHER_GROUND
    assert not [colour for colour in named if min(contrast(colour, LIGHT), contrast(colour, DARK)) < 3]


def test_writing_on_the_map_can_be_read():
    """Text needs 4.5:1, whatever the accuracy below it."""
    for step in range(101):
        share = step / 100
        (low, dark), (high, bright) = next(
            (left, right)
            for left, right in zip(grids.ACCURACY_COLOURS, grids.ACCURACY_COLOURS[1:], strict=False)
            if left[0] <= share <= right[0]
        )
        part = (share - low) / (high - low)
        ground = "#" + "".join(
            f"{round((1 - part) * int(dark[place : place + 2], 16) + part * int(bright[place : place + 2], 16)):02x}"
            for place in (1, 3, 5)
        )
        writing = "#ffffff" if share >= grids.DARK_FROM else "#000000"
        assert contrast(writing, ground) >= 4.49, share


def calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_charts_and_tables_have_words(path):
    for name, node in calls(path):
        if name in ("dataframe", "plotly_chart", "show") and not (name == "show" and path.stem == "app"):
            given = {keyword.arg for keyword in node.keywords}
            assert "alt" in given or None in given, f"{path.name}:{node.lineno}"
        assert name != "plotly_chart" or path.stem == "show", f"{path.name}:{node.lineno}: use dashboard.show"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_inputs_have_labels(path):
    for name, node in calls(path):
        if name in INPUTS and isinstance(node.func, ast.Attribute):
            label = node.args[0] if node.args else None
            assert label is not None, f"{path.name}:{node.lineno}"
            assert not (isinstance(label, ast.Constant) and not str(label.value).strip()), f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("path", [path for path in PAGES if path.stem != "row_choice"], ids=lambda path: path.stem)
def test_every_table_has_a_menu_of_files(path):
    names = [name for name, node in calls(path) if name in ("dataframe", "choose_row", "downloads")]
    assert names.count("downloads") == len(names) - names.count("downloads")


def test_the_guide_names_every_page_and_format():
    guide = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text(encoding="utf-8")
    for page in pages.PAGES:
        assert f"| {page.title} | `/{page.path}` |" in guide
    for form in FORMATS:
        assert f"| {form.name} |" in guide
    for link in re.findall(r"\]\(([^)#]+)\)", guide):
        assert (Path(__file__).parents[2] / "docs" / link).is_file(), link


def test_each_preset_has_a_mark_of_its_own():
    """Colour is never all that tells two policies apart."""
    assert len({marker for _, marker in PRESETS.values()}) == len(PRESETS)
    assert len({look.marker for look in LOOKS.values()}) == len(PRESETS) + 3
