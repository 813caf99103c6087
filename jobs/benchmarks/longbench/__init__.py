"""LongBench (2308.14508): 21 tasks on long contexts in English, Chinese and code."""
