"""Entry of the dashboard: `tiercache dashboard`, or `streamlit run dashboard/app.py`."""

import streamlit as st

from dashboard import compare_page, samples_page, sweeps_page

st.set_page_config(page_title="tiercache-eval", page_icon=":material/layers:", layout="wide")
st.navigation(
    [
        st.Page(sweeps_page.page, title="Sweeps", icon=":material/grid_on:", url_path="sweeps", default=True),
        st.Page(compare_page.page, title="Compare", icon=":material/scatter_plot:", url_path="compare"),
        st.Page(samples_page.page, title="Samples", icon=":material/article:", url_path="samples"),
    ],
    position="top",
).run()
