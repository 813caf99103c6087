"""How the console command starts the dashboard: Streamlit in a process of its own, reachable from this machine only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

APP = Path(__file__).with_name("app.py")


def command(port: int, address: str = "127.0.0.1") -> list[str]:
    """Return the command line that serves the dashboard on `address`:`port`.

    The database's URL is not in it, because command lines are visible to every user of the machine and a URL can hold
    a password: pass `environment(url)` to the process.

    Raises:
        ValueError: `port` isn't one.
    """
    if not 0 < port < 65536:
        raise ValueError(f"port={port} isn't one; allowed: 1..65535")
    settings = {
        "server.address": address,
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "browser.serverAddress": address,
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
        # Streamlit's own is red, and a red progress bar looks like trouble. Set for each theme: a colour outside of
        # them would pin the light one, whatever the reader's system prefers.
        "theme.light.primaryColor": "#3b7dd8",
        "theme.dark.primaryColor": "#3b7dd8",
    }
    arguments = [f"--{name}={value}" for name, value in settings.items()]
    return [sys.executable, "-m", "streamlit", "run", str(APP), *arguments]


def environment(url: str) -> dict[str, str]:
    """Return the environment for `command`: this process's, the database, and a path to our packages.

    Raises:
        ValueError: `url` is empty.
    """
    if not url:
        raise ValueError("database url is empty; pass --db or set TIERCACHE_DB")
    root = str(APP.parents[1])
    inherited = os.environ.get("PYTHONPATH")
    return {
        # A table's own toolbar writes CSV in which a model's output may begin a formula; the menu below it doesn't.
        "STREAMLIT_CLIENT_DISABLE_DATA_EXPORT": "true",
        **os.environ,
        "TIERCACHE_DB": url,
        "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root,
    }
