"""Entry of the dashboard: `tiercache dashboard`, or `streamlit run dashboard/app.py`."""

import streamlit as st

from dashboard.pages import PAGES
from dashboard.show import picture_choice

# Drawn here: a named icon would be fetched from Google's servers by every reader's browser.
ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="#3b7dd8">
<path d="M12 2 2 8l10 6 10-6z"/><path d="m2 12 10 6 10-6v3l-10 6-10-6z" opacity=".6"/></svg>"""

st.set_page_config(page_title="tiercache-eval", page_icon=ICON, layout="wide")
pages = [st.Page(page.show, title=page.title, icon=page.icon, url_path=page.path) for page in PAGES]


def home() -> None:
    """Streamlit serves its default page at / only and calls its own path unknown, so that page just leads on."""
    st.switch_page(pages[0], query_params=st.query_params.to_dict())


st.navigation([st.Page(home, title="Home", default=True, visibility="hidden"), *pages], position="top").run()
picture_choice()
