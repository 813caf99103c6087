"""The statistics of comparisons: estimates with intervals, paired tests, trends over a grid, and what n could show.

Pure functions over plain data. A problem is the unit throughout: its repeats share a difficulty, so they are no
independent samples, and two policies are compared on the same problems. scipy and statsmodels take seconds to import,
so they are imported where they are used.
"""

from jobs.statistics.corrections import holm
from jobs.statistics.independence import Independence, LevelTest, Trend, independence
from jobs.statistics.paired import Paired, paired
from jobs.statistics.power import binomial_error, smallest_effect
from jobs.statistics.repeats import Estimate, majority_at_k, pass_at_1, pass_at_k
from jobs.statistics.scores import Scores, StatisticsError

__all__ = [
    "Estimate",
    "Independence",
    "LevelTest",
    "Paired",
    "Scores",
    "StatisticsError",
    "Trend",
    "binomial_error",
    "holm",
    "independence",
    "majority_at_k",
    "paired",
    "pass_at_1",
    "pass_at_k",
    "smallest_effect",
]
