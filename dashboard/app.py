"""Entry of the dashboard: `tiercache dashboard`, or `streamlit run dashboard/app.py`."""

import streamlit as st

from dashboard import capacity_page, compare_page, samples_page, sweeps_page

st.set_page_config(page_title="tiercache-eval", page_icon=":material/layers:", layout="wide")
sweeps = st.Page(sweeps_page.page, title="Sweeps", icon=":material/grid_on:", url_path="sweeps")


def home() -> None:
    """Streamlit serves its default page at / only and calls its own path unknown, so that page just leads on."""
    st.switch_page(sweeps, query_params=st.query_params.to_dict())


st.navigation(
    [
        st.Page(home, title="Home", default=True, visibility="hidden"),
        sweeps,
        st.Page(compare_page.page, title="Compare", icon=":material/scatter_plot:", url_path="compare"),
        st.Page(samples_page.page, title="Samples", icon=":material/article:", url_path="samples"),
        st.Page(capacity_page.page, title="Capacity", icon=":material/memory:", url_path="capacity"),
    ],
    position="top",
).run()
