"""What the papers claim, as data: published tables, claims, and the tests that decide them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from jobs.papers.picks import Pick
from jobs.papers.verdicts import Expected
from tiercache.strict import Strict as _Strict  # noqa: F401
