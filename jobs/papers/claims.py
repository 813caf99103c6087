"""All claims and published tables of the three papers."""

from jobs.papers import audits, epikv, hierarchy, qevict
from jobs.papers.kinds import Claim, Published

CLAIMS: tuple[Claim, ...] = (*hierarchy.CLAIMS, *audits.CLAIMS, *epikv.CLAIMS, *qevict.CLAIMS)
PUBLISHED: tuple[Published, ...] = (*hierarchy.PUBLISHED, *epikv.PUBLISHED, *qevict.PUBLISHED)
