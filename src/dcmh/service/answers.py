"""The shapes of answers, for the schema. Answers are written as JSON directly: they are made here, so not checked again."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Hit(Answer):
    """One item found."""

    id: int
    distance: int = Field(description="Bits in which the codes differ")
    bits: int
    precision: float | None = Field(
        description="Share of relevant items among such hits, measured on items that the model had not learned from"
    )
    score: float | None = Field(description="Orders the hits; null where distances order them")
    fine: float | None = Field(description="The part of the score that the fine vectors give")
    words: list[str] = Field(description="Words of the query that the text or the labels of the item contain")
    name: str
    text: str | None
    labels: list[str]
    modality: str = Field(description="Modality of the code that was near")
    thumbnail: str | None
    image: str | None


class Asked(Answer):
    """What became of the query."""

    text: str | None
    item: int | None
    modality: str
    used: list[str]
    ignored: list[str]
    nearest: dict[str, list[str]] = Field(description="Known words similar to the ignored ones")
    code: str = Field(description="Hexadecimal; bit 0 is the lowest bit of the first byte")
    key: str = Field(description="Code and quantised fine vector, hexadecimal: GET /api/search?code= takes it")


class Search(Answer):
    query: Asked
    searched: int = Field(description="Number of items searched")
    took_ms: float
    bits: int
    k: int
    offset: int
    radius: int | None
    candidates: int | None = Field(description="Number of items scored; null where all items searched were")
    at_least: float | None
    below: int = Field(description="Hits left out because their precision is lower than at_least, or unknown")
    hits: list[Hit]
    nearest: Hit | None = Field(
        description="Where there are no hits, the best one outside the radius or below at_least"
    )
    next: str | None = Field(description="Address of the next page")


class Item(Answer):
    id: int
    name: str
    text: str | None
    labels: list[str]
    bits: int
    codes: dict[str, str]
    image: str | None
    thumbnail: str | None
    similar: str


class Codes(Answer):
    codes: list[str]
    bits: int


class Word(Answer):
    word: str
    count: int = Field(description="Number of training texts that contain it")


class Words(Answer):
    prefix: str
    vocabulary: int
    total: int
    words: list[Word]


class Radius(Answer):
    radius: int
    precision: float | None
    recall: float | None


class Measured(Answer):
    asked: str = Field(alias="from")
    found: str = Field(alias="to")
    queries: int
    database: int
    chance: float | None
    map: float | None
    by_radius: list[Radius]


class Asks(Answer):
    text: str | None
    image: str | None


class Limits(Answer):
    upload_bytes: int
    megapixels: int
    k: int
    offset: int
    text: int


class Info(Answer):
    name: str
    items: int
    bits: int
    method: str
    model: str
    codes: dict[str, int]
    asks: Asks
    vocabulary: int
    text_encoder: str | None = Field(description="Sentence encoder: any words work; null where only known words do")
    precision_measured: bool = Field(description="Whether hits can have a precision, which at_least needs")
    measured: list[Measured]
    attribution: str | None
    writable: bool
    limits: Limits
    versions: dict[str, str]


class Health(Answer):
    status: str


class Reloaded(Answer):
    changed: bool
    items: int
