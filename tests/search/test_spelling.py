"""Queries as people type them: emoji, capitals, quotation marks, misspelt words, plurals."""

from __future__ import annotations

import pytest

import dcmh
from dcmh.errors import QueryError
from dcmh.inputs import encoders
from dcmh.search import SearchIndex, spelling
from dcmh.search.rank import WithPlurals
from dcmh.util.text import index_words

TEXTS = ["a giraffe named Zebulon", "ice cream and cookies", "one cookie", "tomatoes", "a tomato", "two scarves"]


@pytest.fixture(scope="module")
def index(cheap_home, tmp_path_factory):
    """An index of texts by the starter model."""
    data = dcmh.Dataset.from_arrays(text=TEXTS, ids=[str(row) for row in range(len(TEXTS))])
    folder = tmp_path_factory.mktemp("spelling")
    with SearchIndex.build(None, data, folder / "texts.dcmh") as made:
        yield made


@pytest.fixture(scope="module")
def encoder():
    return encoders.text_encoder("use-multilingual")


def corrections(text, encoder, held=()):
    return spelling.corrections(text, encoder, lambda words: {word: int(word in held) for word in words})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("umbrela", "umbrella"),
        ("Motorcyle", "motorcycle"),
        ("zbra", "zebra"),
        ("hosre", "horse"),
        ("refridgeratr", "refrigerator"),
        ("teddybear", "teddy bear"),
        ("snowboarding", None),
        ("stretched", None),
        ("splitting", None),
        ("router", None),
        ("Regenschirm", None),
        ("Hund", None),
        ("gatos", None),
        ("кошкаа", None),
        ("dgo", None),
        ("IMG_0412", None),
        ("qqqqqqqqqqqq", None),
    ],
)
def test_misspelt_words(typed, meant, encoder):
    assert corrections(typed, encoder) == ({} if meant is None else {typed: meant})


def test_words_of_the_collection_are_not_misspelt_and_are_what_is_meant(encoder):
    assert corrections("umbrela", encoder, {"umbrela"}) == {}
    assert corrections("Zebulun", encoder, {"zebulon"}) == {"Zebulun": "zebulon"}
    assert corrections("girafes", encoder, {"giraffe"}) == {"girafes": "giraffes"}


MISSPELT = "hosre hose kitchne refridgeratr umbrelllla snowbaord wizil qqqq frist"  # codespell:ignore


@pytest.mark.parametrize("word", MISSPELT.split())
def test_the_common_word_that_was_meant_is_that_of_brute_force(word):
    limit = 2 if len(word) >= spelling.LONG else 1
    common = [other for other in spelling._common_words() if other[0] == word[0]]
    distances = {other: spelling._distance(word, other, limit) for other in common if other != word}
    nearest = min(distances, key=lambda other: distances[other])  # the first one is the most common
    wanted = nearest if distances[nearest] <= limit else None
    assert spelling._meant(word, lambda words: dict.fromkeys(words, 0)) == wanted


TYPED = "fron thei yourse buse peopl knive caf wizil"  # codespell:ignore


@pytest.mark.parametrize("word", TYPED.split())
def test_the_forms_of_many_words_are_those_of_each(word):
    near = list(dict.fromkeys(spelling._edits(word)))
    assert set(spelling._forms(near)) == {form for other in near for form in index_words(other)}


def test_words_in_quotation_marks_are_as_they_are_meant(encoder):
    assert corrections('"umbrela" motorcyle', encoder) == {"motorcyle": "motorcycle"}
    assert spelling.corrected('"umbrela" umbrela, Umbrela', {"umbrela": "umbrella"}) == '"umbrela" umbrella, Umbrela'


def test_an_encoder_that_does_not_know_words_leaves_all_as_they_are():
    assert corrections("umbrela", None) == {}


def test_a_search_says_what_it_corrected(index):
    hits = index.search("a girafe naned Zebulun", k=1)
    assert hits.query.corrected == {"girafe": "giraffe", "naned": "named", "Zebulun": "zebulon"}
    assert (hits[0].text, hits.query.text) == (TEXTS[0], "a girafe naned Zebulun")
    assert hits.to_json()["query"]["corrected"] == hits.query.corrected
    as_typed = index.search('"girafe"')
    assert (as_typed.query.corrected, as_typed.query.used) == ({}, ("girafe",))


def test_a_correction_that_finds_nothing_better_is_not_made(tmp_path, monkeypatch):
    data = dcmh.Dataset.from_arrays(text=TEXTS, ids=TEXTS)
    with SearchIndex.build(None, data, tmp_path / "texts.dcmh") as index:
        assert index.search("girafe").query.corrected == {"girafe": "giraffe"}
        monkeypatch.setattr(spelling, "_meant", lambda word, counts: "xylophone")
        assert index.search("girafe").query.corrected == {}


def test_names_of_emoji_are_read(index):
    assert spelling.named("\U0001f436\U0001f3fd on a \u26f5\ufe0f").split() == ["dog", "face", "on", "a", "sailboat"]
    assert index.search("\U0001f992", k=1)[0].text == TEXTS[0]
    assert index.ask("\U0001f992")[0].key == index.ask("giraffe face")[0].key


def test_hashtags_are_words(index):
    assert index.ask("#dog #beach")[0].key == index.ask("dog beach")[0].key
    assert spelling.named("C# #1").split() == ["C#", "1"]


def test_capitals_mean_the_same(index):
    assert index.ask("DOG")[0].key == index.ask("dog")[0].key == index.ask("DoG")[0].key
    assert index.ask("FAHRRAD")[0].key == index.ask("Fahrrad")[0].key != index.ask("fahrrad")[0].key
    assert index.ask("Apple")[0].key != index.ask("apple")[0].key


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("dog", "word"),
        ("wine glass", "word"),
        ("the cat on the mat", "word"),
        ("a red wine glass", "sentence"),
        ("飛行機", "word"),  # three characters, one word
        ("街上的狗", "word"),  # a dog on the street
        ("沙滩上的狗和孩子", "sentence"),
    ],
)
def test_one_or_two_words_are_no_sentence_in_any_script(index, text, kind):
    assert index.ask(text)[0].kind == kind


@pytest.mark.parametrize("text", ["???", "...", "-", '""', "\u2014", "\u00a9"])
def test_a_query_without_words(index, text):
    with pytest.raises(QueryError, match=r"There is no word in the query '.+'\. Give some words, or a picture\."):
        index.search(text)


@pytest.mark.parametrize("text", ['"no people"', "“no people”", ' "no people" ', "«no people»"])
def test_quotation_marks_around_everything_do_not_undo_an_exclusion(index, text):
    assert index.ask(text)[0].without == ("people",)
    assert index.ask(text)[0].key == index.ask("no people")[0].key


def test_typographic_quotation_marks_are_quotation_marks(index):
    assert index.ask("table -“wine glass”")[0].without == ("wine glass",)


@pytest.mark.parametrize(
    ("asked", "singular", "wanted"),
    [
        ("cookie", "cookie", 2),
        ("cookies", "cookie", 2),
        ("tomato", "tomato", 2),
        ("tomatoes", "tomato", 2),
        ("scarf", "scarf", 1),
        ("scarves", "scarf", 1),
    ],
)
def test_plurals_and_singulars_find_each_other(index, asked, singular, wanted):
    (word,) = index_words(asked)
    words = WithPlurals(index.store)
    assert len(words.with_word(word)) == words.word_counts([word])[word] == wanted
    said = [hit.words for hit in index.search(asked, k=len(TEXTS))]
    assert said.count((singular,)) == wanted
    assert said.count(()) == len(TEXTS) - wanted
    assert all(asked[:3] not in hit.text for hit in index.search(f"food -{asked}", k=len(TEXTS)))
