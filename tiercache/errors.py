"""Errors a user can cause or meet.

    TierCacheError
    ├── SpecError        a sweep file says something impossible
    ├── PolicyError      a policy's parameters are impossible or contradict each other
    ├── RequestError     a prompt, a sampling parameter or a limit is impossible
    ├── ModelError       a model can't be found, isn't supported or doesn't fit the request
    ├── BenchmarkError   a benchmark's data are missing or malformed
    ├── GradingError     an answer could not be graded
    ├── ResourceError    the machine or cluster can't run what was asked
    └── StorageError     results can't be read or written

Each message names the field, its value, what is allowed and the remedy.
"""


class TierCacheError(Exception):
    """Root of every error that this project raises on purpose."""


class SpecError(TierCacheError):
    """A sweep file says something impossible."""


class PolicyError(TierCacheError):
    """A policy's parameters are impossible or contradict each other."""


class RequestError(TierCacheError):
    """A prompt, a sampling parameter or a limit is impossible."""


class ModelError(TierCacheError):
    """A model can't be found, isn't supported or doesn't fit the request."""


class BenchmarkError(TierCacheError):
    """A benchmark's data are missing or malformed."""


class GradingError(TierCacheError):
    """An answer could not be graded."""


class ResourceError(TierCacheError):
    """The machine or cluster can't run what was asked."""


class StorageError(TierCacheError):
    """Results can't be read or written."""
