"""DCMH: Deep Cross-Modal Hashing (Jiang & Li, 2016), and its stable form for any data."""

from dcmh.methods.dcmh.algorithm import DCMH

__all__ = ["DCMH"]
