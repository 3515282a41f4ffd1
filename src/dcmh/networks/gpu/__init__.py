"""Triton kernels and what calls them."""
