"""The benchmarks by name: where their files come from, how they are checked, how they are read."""
