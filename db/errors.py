"""Errors of storing and reading results.

    StorageError             results can't be read or written
    └── DatabaseMissing      a read-only open found no file: nothing has been run yet

Each message names the field, its value, what is allowed and the remedy, and never holds a password.
"""


class StorageError(Exception):
    """Results can't be read or written."""


class DatabaseMissing(StorageError):
    """A read-only open found no database file. Kept apart because it is how every first start looks."""
