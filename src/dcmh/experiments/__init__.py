"""Experiments: benchmark plans, their tables and figures, and the search for parameters."""
