"""Type-ahead: the known words that begin with some letters, most frequent first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from dcmh.util.text import BagOfWords


class Vocabulary:
    """The words of a model in both orders: by frequency, as the bag has them, and by letters."""

    def __init__(self, bag: BagOfWords | None) -> None:
        self.words: tuple[str, ...] = bag.words_ if bag else ()
        self.counts: list[int] = bag.counts_.tolist() if bag else []
        self._by_letters = sorted((word, rank) for rank, word in enumerate(self.words))

    def __len__(self) -> int:
        return len(self.words)

    def starting_with(self, prefix: str, limit: int, offset: int = 0) -> dict[str, Any]:
        start = prefix.strip().lower()
        if start:
            first = bisect_left(self._by_letters, (start,))
            last = bisect_right(self._by_letters, (f"{start}\U0010ffff",))
            ranks = sorted(rank for _, rank in self._by_letters[first:last])
        else:
            ranks = list(range(len(self.words)))
        shown = ranks[offset : offset + limit]
        return {
            "prefix": prefix,
            "vocabulary": len(self.words),
            "total": len(ranks),
            "words": [{"word": self.words[rank], "count": self.counts[rank]} for rank in shown],
        }
