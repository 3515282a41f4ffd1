"""Mutated files and requests for every reader. Each must end in an error of dcmh or in a correct load.

    python -m tests.fuzz --cases 5000                       every reader in turn
    python -m tests.fuzz --seed 1234 --only index           one case again, with its traceback

A case is a reader and a seed: the same two give the same bytes. It runs in a worker process, with limits on time and
memory, that is replaced when it dies.
"""
