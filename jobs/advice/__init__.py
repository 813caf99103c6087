"""Which policy at which budget: sentences that an engineer can act on, each with the cells it rests on.

`evidence` reads what was measured, `budgets` says what fits, `answers` tests and sorts, `sentences` says it, `pages`
writes the Markdown page, `data` and `commands` are for `tiercache advise`. No torch, and only the database is read.
"""

from jobs.advice.answers import Answer, Candidate, Question, answer
from jobs.advice.budgets import Room, Share
from jobs.advice.commands import command
from jobs.advice.data import as_data, read_budget, room
from jobs.advice.evidence import Evidence, Setting, settings
from jobs.advice.pages import advice_markdown
from jobs.advice.sentences import Sentence, sentences

__all__ = [
    "Answer",
    "Candidate",
    "Evidence",
    "Question",
    "Room",
    "Sentence",
    "Setting",
    "Share",
    "advice_markdown",
    "answer",
    "as_data",
    "command",
    "read_budget",
    "room",
    "sentences",
    "settings",
]
