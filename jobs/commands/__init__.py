"""The commands of `tiercache`, but for `run` and what looks around, which are in `jobs.cli`."""
