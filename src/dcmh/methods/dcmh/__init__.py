"""Deep Cross-Modal Hashing (Jiang and Li, 2017): the method of the paper."""

from dcmh.methods.dcmh.hasher import DCMH

__all__ = ["DCMH"]
