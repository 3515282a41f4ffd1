"""Queries as people type them: emoji, capitals, and misspelt words.

A word is misspelt if neither the collection, nor the captions of photos that the list of common words was made from, nor the
sentence encoder have it or a word that it is a form of ("stretched"), and one of the first two has a word that is spelt almost
alike, or the two words that it joins ("teddybear"). The first letter is taken to be right: it rarely is mistyped, while words of
other languages often differ from an English one by it ("Eule", "rule"). Words in quotation marks are left as they are.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from string import ascii_lowercase

from dcmh.inputs.encoders import TextEncoder
from dcmh.util.text import HALVES, STOP_WORDS, common_words, index_words, plural_form

Counts = Callable[[Sequence[str]], dict[str, int]]  # how many items contain each word

SHORTEST = 4  # letters of a word from which on it is compared with others,
LONG = 8  # and from which on two letters may differ
LONGEST = 30
PART = 3  # letters of each of two words that are written as one
MOST = 8  # words of a query
ENDINGS = ("ed", "ing", "er", "ers")  # of forms of a word

_WORD = re.compile(r'"[^"]*"|\w+')
_MARKS = re.compile(r'"|(?<!\S)#(?=\w)')
_EMOJI = re.compile("[\u200d\u2600-\u27bf\ufe0f\U0001f300-\U0001faff]")
_NO_NAMES = ("zero width", "variation selector", "emoji modifier")  # of parts of emoji, such as skin colours


def named(text: str) -> str:
    """The text with the names of its emoji in their place, and words without # or quotation marks.

    A sentence encoder reads "dog face", but not the drawing, and less of "#dog" than of "dog".
    """
    return _EMOJI.sub(_name, _MARKS.sub(" ", text))


def _name(emoji: re.Match[str]) -> str:
    name = unicodedata.name(emoji[0], "").lower()
    return " " if name.startswith(_NO_NAMES) else f" {name} "


def in_usual_case(text: str, encoder: TextEncoder | None) -> str:
    """The words as the encoder has seen them most often, since "DOG" is not "dog" to it."""
    usual = getattr(encoder, "in_usual_case", None)
    return text if usual is None else str(usual(text))


def words_of(text: str) -> tuple[str, ...]:
    """The words under which texts are looked for, as people write them: cookie, where an index may have cooky."""
    common = _common_words()
    pairs = ((word, plural_form(word) or word) for word in index_words(text))
    return tuple(
        other if word not in common and (other in common or other in HALVES) else word for word, other in pairs
    )


def corrections(text: str, encoder: TextEncoder | None, counts: Counts) -> dict[str, str]:
    """Misspelt words, with what was probably meant; none without an encoder that knows which words there are."""
    is_word = getattr(encoder, "is_word", None)
    if is_word is None:
        return {}
    typed = [word for word in _WORD.findall(text) if SHORTEST <= len(word) <= LONGEST and word.isascii()]
    words = [word for word in dict.fromkeys(typed) if word.isalpha() and not _is_common(word.lower())]
    words = [word for word in words if not any(_is_common(base) or is_word(base) for base in _bases(word.lower()))]
    forms = {word: index_words(word) for word in words if not is_word(word)}
    forms = {word: others for word, others in forms.items() if not any(map(is_word, others))}
    words = list(forms)[:MOST]
    held = counts([form for word in words for form in forms[word]]) if words else {}
    found = {word: _meant(word.lower(), counts) for word in words if not any(held.get(form) for form in forms[word])}
    return {word: meant for word, meant in found.items() if meant is not None}


def corrected(text: str, meant: dict[str, str]) -> str:
    """The text with some of its words replaced."""
    return _WORD.sub(lambda word: meant.get(word[0], word[0]), text)


def _meant(word: str, counts: Counts) -> str | None:
    """What was meant by a word that the collection does not have: a word of the collection, or else a common one."""
    near = [other for other in dict.fromkeys(_edits(word)) if other[0] == word[0]]
    held = counts(_forms(near))
    if any(held.values()):
        return max(near, key=lambda other: (held.get(index_words(other)[0], 0), _is_common(other)))
    common = _common_words()
    if others := [other for other in near if other in common]:
        return min(others, key=lambda other: common[other])  # the most common
    if len(word) >= LONG:
        further = (other for other in common if other[0] == word[0] and _distance(word, other, 2) == 2)
        if (other := next(further, None)) is not None:
            return other
    return _two_words(word, counts)


def _bases(word: str) -> Iterator[str]:
    """The words that a word may be a form of: stretch of "stretched", crop of "cropping", route of "router"."""
    for ending in ENDINGS:
        base = word.removesuffix(ending)
        if base != word:
            others = (base, base + "e", base[:-1] if base[-1:] == base[-2:-1] else "")
            yield from (other for other in others if len(other) >= SHORTEST)


def _forms(words: list[str]) -> list[str]:
    """What `index_words` makes of each of many words; of all at once, which is faster, it leaves out stop words."""
    stopped = [word for word in words if word in STOP_WORDS or word[-1] == "s"]  # "others" becomes one
    return list(
        dict.fromkeys([*index_words(" ".join(words)), *(form for word in stopped for form in index_words(word))])
    )


def _two_words(word: str, counts: Counts) -> str | None:
    """The two words that one was made of by leaving out the space."""
    both = [[word[:at], word[at:]] for at in range(PART, len(word) - PART + 1)]
    held = counts([form for parts in both for part in parts for form in index_words(part)]) if both else {}
    for parts in both:
        if all(_is_common(part) or held.get(index_words(part)[0]) for part in parts):
            return " ".join(parts)
    return None


def _edits(word: str) -> Iterator[str]:
    """All words that one letter more, less or other, or two letters in the other order, make of a word."""
    for at in range(len(word) + 1):
        head, tail = word[:at], word[at:]
        if tail:
            yield head + tail[1:]
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]
        for letter in ascii_lowercase:
            yield head + letter + tail
            if tail and letter != tail[0]:
                yield head + letter + tail[1:]


def _distance(a: str, b: str, limit: int) -> int:
    """The number of letters that differ, as in `_edits` (Damerau and Levenshtein); beyond `limit` any larger number."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    before: list[int] = []
    last = list(range(len(b) + 1))
    for row, one in enumerate(a, 1):
        here = [row]
        for column, other in enumerate(b, 1):
            best = min(last[column] + 1, here[-1] + 1, last[column - 1] + (one != other))
            if row > 1 and column > 1 and one == b[column - 2] and a[row - 2] == other:
                best = min(best, before[column - 2] + 1)
            here.append(best)
        if min(here) > limit:
            return limit + 1
        before, last = last, here
    return last[-1]


@functools.cache
def _common_words() -> dict[str, int]:
    """Common words, the most frequent first, with their places."""
    return {word: place for place, word in enumerate(common_words())}


@functools.lru_cache(maxsize=1 << 12)
def _is_common(word: str) -> bool:
    words = _common_words()
    return word in STOP_WORDS or word in words or any(form in words for form in index_words(word))
