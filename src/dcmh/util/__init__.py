"""Helpers that know nothing of hashing; each module is named for its job."""
