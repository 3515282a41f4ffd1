"""BagOfWords: against scikit-learn's CountVectorizer, and against itself through a file."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcmh.errors import DataError, NotFittedError, ParameterError
from dcmh.util.text import STOP_WORDS, BagOfWords, folder_words, sanitized, singular, words_of

TEXTS = ["Two dogs on a beach", "a dog's beach", "DOG dog dog, naïve café", "beach 2024 x-ray", None, "the dogs"]
COCO = Path(__file__).parents[2] / "../shared/data/coco12k/pairs.jsonl"


def against_scikit_learn(texts, *, min_count, stop_words, binary, plurals=True):
    from sklearn.feature_extraction.text import CountVectorizer

    ours = BagOfWords(min_count=min_count, stop_words=stop_words, binary=binary, plurals=plurals).fit(texts)
    stopped = list(STOP_WORDS) if stop_words else None
    if plurals:
        theirs = CountVectorizer(min_df=min_count, binary=binary, stop_words=stopped)
    else:
        plain = CountVectorizer(stop_words=stopped).build_analyzer()
        analyse = lambda text: [singular(word) for word in plain(text)]  # noqa: E731
        theirs = CountVectorizer(min_df=min_count, binary=binary, analyzer=analyse)
    expected = theirs.fit_transform(texts).toarray()
    assert set(ours.words_) == set(theirs.vocabulary_)
    order = [theirs.vocabulary_[word] for word in ours.words_]
    np.testing.assert_array_equal(ours.transform(texts), expected[:, order])
    return ours, expected[:, order]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("stop_words", [True, False])
@pytest.mark.parametrize("min_count", [1, 2])
@pytest.mark.parametrize("plurals", [True, False])
def test_equals_count_vectorizer(binary, stop_words, min_count, plurals):
    texts = [text or "" for text in TEXTS] * 2 + ["_under score_ é ß straße İstanbul ǅ ١٢٣ 日本 日本語 a_b"]
    settings = {"min_count": min_count, "stop_words": stop_words, "binary": binary, "plurals": plurals}
    ours, vectors = against_scikit_learn(texts, **settings)
    np.testing.assert_array_equal(ours.counts_, (vectors > 0).sum(axis=0))


words = st.lists(st.text(alphabet="abcdeis é_1 -'Aß", max_size=12), min_size=1, max_size=15)


@given(words, st.booleans(), st.booleans())
def test_equals_count_vectorizer_on_any_text(texts, binary, plurals):
    if not any(words_of(text) for text in texts):
        return
    against_scikit_learn(texts, min_count=1, stop_words=False, binary=binary, plurals=plurals)


@pytest.mark.parametrize(
    ("word", "form"),
    [
        ("dogs", "dog"),
        ("berries", "berry"),
        ("grass", "grass"),
        ("bus", "bus"),
        ("tennis", "tennis"),
        ("gas", "gas"),
        ("ties", "tie"),
    ],
)
def test_plurals_fold_by_their_ending(word, form):
    assert singular(word) == form


@pytest.mark.skipif(not COCO.exists(), reason="real captions are not here")
def test_equals_count_vectorizer_on_real_captions():
    texts = [json.loads(line)["text"] for line in COCO.read_text().splitlines()[:2000]]
    against_scikit_learn(texts, min_count=4, stop_words=True, binary=True)
    against_scikit_learn(texts, min_count=2, stop_words=True, binary=True, plurals=False)
    frequent = BagOfWords(max_words=50).fit(texts)
    everything = BagOfWords().fit(texts)
    assert frequent.words_ == everything.words_[:50]


@given(words, st.booleans())
def test_load_undoes_save(tmp_path_factory, texts, binary):
    bag = BagOfWords(min_count=1, stop_words=False, binary=binary)
    try:
        bag.fit(texts)
    except DataError:
        return
    path = tmp_path_factory.mktemp("words") / "vocabulary.txt"
    bag.save(path)
    again = BagOfWords.load(path)
    assert (again.words_, again.documents_, again.binary) == (bag.words_, bag.documents_, bag.binary)
    np.testing.assert_array_equal(again.counts_, bag.counts_)
    np.testing.assert_array_equal(again.transform(texts), bag.transform(texts))


def test_the_file_is_readable(tmp_path):
    BagOfWords(min_count=2).fit(TEXTS).save(tmp_path / "vocabulary.txt")
    header, *lines = (tmp_path / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    assert header.startswith("# dcmh vocabulary {")
    assert '"min_count": 2' in header
    assert lines == ["dog\t4", "beach\t3"]


def test_most_frequent_first_then_alphabetical():
    bag = BagOfWords(min_count=1).fit(["pear fig", "pear apple", "pear fig apple", "kiwi"])
    assert bag.words_ == ("pear", "apple", "fig", "kiwi")
    assert bag.counts_.tolist() == [3, 2, 2, 1]
    assert BagOfWords(min_count=1, max_words=2).fit(["pear fig", "pear apple"]).words_ == ("pear", "apple")


def test_given_words_are_found_as_counted_ones_are():
    texts = ["Two dogs bark", "a dog and a cat", None, "berries, the berry", "boats boats boat"]
    bag = BagOfWords(min_count=1).fit(texts)
    chosen = list(bag.words_[::-2])
    found = BagOfWords.of(chosen)
    assert list(found.words_) == chosen
    np.testing.assert_array_equal(
        found.transform(texts), bag.transform(texts)[:, [bag.words_.index(w) for w in chosen]]
    )


def test_missing_texts_do_not_count_and_are_zeros():
    bag = BagOfWords(min_count=1).fit(TEXTS)
    assert bag.documents_ == 5
    vectors = bag.transform(TEXTS)
    assert vectors.shape == (6, len(bag))
    assert vectors.dtype == np.float32
    assert not vectors[4].any()
    assert bag.transform([]).shape == (0, len(bag))


def test_used_and_ignored_words():
    bag = BagOfWords(min_count=2).fit(TEXTS)
    assert bag.used_and_ignored("Two dogs on a BEACH, dogs!") == (["dogs", "beach"], ["two", "on", "a"])
    assert bag.used_and_ignored("?!") == ([], [])
    assert "beach" in bag
    assert "two" not in bag


def test_nearest_spelling():
    bag = BagOfWords(min_count=1).fit(["beach beech birch lighthouse"])
    assert bag.nearest("Beahc")[0] == "beach"
    assert bag.nearest("lihgthouse", n=1) == ["lighthouse"]
    assert bag.nearest("qqqq") == []


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"No word occurs in 4 or more of the 2 texts; .*'dog', in 2. Lower min_count"):
        BagOfWords(min_count=4).fit(["dog", "dog cat"])
    with pytest.raises(DataError, match="contain no words"):
        BagOfWords().fit(["", None])
    with pytest.raises(DataError, match="got one string"):
        BagOfWords().fit("dog")
    with pytest.raises(NotFittedError, match="fit"):
        BagOfWords().transform(["dog"])
    with pytest.raises(ParameterError, match="min_count"):
        BagOfWords(min_count=0)
    with pytest.raises(ParameterError, match="max_words"):
        BagOfWords(max_words=0)
    with pytest.raises(DataError, match="does not exist"):
        BagOfWords.load(tmp_path / "none.txt")
    for damaged in ("hello", '# dcmh vocabulary {"format": 9}', '# dcmh vocabulary {"format": 1}', ""):
        (tmp_path / "bad.txt").write_text(damaged)
        with pytest.raises(DataError, match="not a vocabulary"):
            BagOfWords.load(tmp_path / "bad.txt")


def test_an_empty_vocabulary_is_not_written_as_one(tmp_path):
    with pytest.raises(NotFittedError):
        BagOfWords().save(tmp_path / "vocabulary.txt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("ünï \U0001f600", "ünï \U0001f600"),
        ("boat \ud83d", "boat \ufffd"),
        ("\ude00boat", "\ufffdboat"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
    ],
)
def test_half_a_character_is_mended(text, whole):
    assert sanitized(text) == whole


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("holiday/beach/img1.jpg", "holiday beach"),
        ("DCIM/100CANON/photos/1.jpg", ""),
        ("101_PANA/2019-08-12 Lake_Como/1.jpg", "Lake Como"),
        ("SommerUrlaub2/Ägäis/a.jpg", "Sommer Urlaub Ägäis"),
        ("写真/犬/a.jpg", "写真 犬"),
        ("समुद्र तट/a.jpg", "समुद्र तट"),
        ("beach.jpg", ""),
        ("/home/me/beach/a.jpg", ""),
        ("../beach/a.jpg", ""),
    ],
)
def test_words_of_folders(path, words):
    assert folder_words(path) == words
