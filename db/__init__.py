"""What is kept: tables, migrations, one writer, read queries. Imports no other package of this project."""

from db.connection import default_url, open_engine
from db.errors import DatabaseMissing, StorageError
from db.rows import CellRow, SampleRow, ShardRow
from db.writer import Writer

__all__ = [
    "CellRow",
    "DatabaseMissing",
    "SampleRow",
    "ShardRow",
    "StorageError",
    "Writer",
    "default_url",
    "open_engine",
]
