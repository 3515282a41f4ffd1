"""Helpers that are independent of hashing; each module is named for its job."""
