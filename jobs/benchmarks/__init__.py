"""Benchmarks: problems, prompts, generation defaults and graders. `base` has the interface and the registry."""
