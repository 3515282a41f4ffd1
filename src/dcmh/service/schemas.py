"""The JSON responses. Endpoints build these models, so the schema describes exactly what is sent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    def response(self, status: int = 200) -> Response:
        """The model as a JSON response."""
        return Response(self.model_dump_json(by_alias=True), status, media_type="application/json")


def printable(name: str) -> str:
    """A file name as JSON can hold it: bytes that are not UTF-8 become question marks."""
    return name.encode("utf-8", "replace").decode()


class Hit(Schema):
    """One item found."""

    id: int
    distance: int = Field(description="Bits in which the codes differ")
    bits: int
    precision: float | None = Field(
        description="Share of relevant items among such hits, measured on items that the model had not learned from"
    )
    score: float | None = Field(description="Orders the hits; null where distances order them")
    fine: float | None = Field(description="The part of the score that comes from the fine vectors")
    words: tuple[str, ...] = Field(description="Words of the query in the text or the labels of the item")
    name: str
    text: str | None
    labels: tuple[str, ...]
    modality: str = Field(description="Modality of the code that matched")
    thumbnail: str | None
    image: str | None


class Filter(Schema):
    """Which items may be hits."""

    labels: tuple[str, ...] = ()
    folder: str | None = None
    since: str | None = None
    until: str | None = None
    where: tuple[str, ...] = ()


class Query(Schema):
    """How the query was understood."""

    text: str | None
    item: int | None
    modality: str
    used: tuple[str, ...]
    ignored: tuple[str, ...]
    nearest: dict[str, tuple[str, ...]] = Field(description="Known words similar to the ignored ones")
    corrected: dict[str, str] = Field(description="Misspelt words, with those that were searched for instead")
    code: str = Field(description="Hexadecimal; bit 0 is the lowest bit of the first byte")
    key: str = Field(description="Code and quantised fine vector, hexadecimal: GET /api/search?code= takes it")
    without: tuple[str, ...] = Field(description="What the words exclude")
    like: tuple[int, ...] = Field(description="Items that hits resemble")
    unlike: tuple[int, ...] = Field(description="Items that hits do not resemble")
    filter: Filter


class Search(Schema):
    query: Query
    searched: int = Field(description="Number of items searched")
    took_ms: float
    bits: int
    k: int
    offset: int
    radius: int | None
    candidates: int | None = Field(description="Number of items scored; null where all items searched were")
    at_least: float | None
    below: int = Field(description="Hits left out because their precision is lower than at_least, or unknown")
    unlikely: bool = Field(description="Whether probably nothing matches: precision or scores are too low")
    hits: list[Hit]
    nearest: Hit | None = Field(
        description="Where there are no hits, the best one outside the radius or below at_least"
    )
    next: str | None = Field(description="Address of the next page")


class Item(Schema):
    id: int
    name: str
    folder: str = Field(description="Folder of the picture in the collection; empty for the top one")
    file: str | None = Field(description="Name of the picture's file")
    text: str | None
    labels: tuple[str, ...]
    bytes: int | None = Field(description="Size of the picture's file")
    found_by: tuple[str, ...] = Field(description="Words of the collection that its picture is found by, best first")
    taken: str | None = Field(description="When the photo was taken, or else its file written, in local time")
    extra: dict[str, str | int | float] = Field(description="Other columns of the table, on which `where` filters")
    bits: int
    codes: dict[str, str]
    image: str | None
    thumbnail: str | None
    similar: str


class Topic(Schema):
    word: str
    items: int = Field(description="Number of items of the sample that carry it")
    precision: float | None = Field(description="Share of its first hits by picture alone that carry it")


class Overview(Schema):
    topics: list[Topic] = Field(description="Words that find what they say, best and most frequent first")
    labels: list[str] = Field(description="Labels of a sample of the items, most frequent first")
    folders: list[str] = Field(description="Folders of a sample of the items, most frequent first")


class Copy(Schema):
    """An item of a group of copies."""

    id: int
    name: str
    text: str | None
    labels: tuple[str, ...]
    thumbnail: str | None
    image: str | None
    width: int | None = Field(description="Pixels")
    height: int | None
    size: int | None = Field(description="Bytes of the file")
    distance: int = Field(description="Bits of 64 in which its signature differs from that of the item to keep")


class CopyGroup(Schema):
    """Copies of one another; each is a copy of the item to keep, which comes first."""

    kind: Literal["exact", "near"]
    keep: int = Field(description="Id of the item to keep")
    reason: str = Field(description="Why that one")
    items: list[Copy]


class Duplicates(Schema):
    total: int = Field(description="Number of groups")
    compared: int = Field(description="Number of different pictures that were compared")
    missing: int = Field(description="Pictures not compared for near copies: dcmh duplicates INDEX prepares them")
    offset: int
    groups: list[CopyGroup]
    next: str | None = Field(description="Address of the next page")


class Codes(Schema):
    codes: list[str]
    bits: int


class Word(Schema):
    word: str
    count: int = Field(description="Number of training texts that contain it")


class Words(Schema):
    prefix: str
    vocabulary: int
    total: int
    words: list[Word]


class Radius(Schema):
    radius: int
    precision: float | None
    recall: float | None


class Measured(Schema):
    query_modality: str = Field(validation_alias="from", serialization_alias="from")
    hit_modality: str = Field(validation_alias="to", serialization_alias="to")
    queries: int
    database: int
    chance: float | None
    map: float | None
    by_radius: list[Radius]


class QueryModalities(Schema):
    text: str | None
    image: str | None


class Limits(Schema):
    upload_bytes: int
    megapixels: int
    k: int
    offset: int
    text: int


class Info(Schema):
    name: str
    items: int
    bits: int
    method: str
    model: str
    codes: dict[str, int]
    asks: QueryModalities
    vocabulary: int
    text_encoder: str | None = Field(description="Sentence encoder: any words work; null where only known words do")
    precision_measured: bool = Field(description="Whether hits can have a precision, which at_least needs")
    measured: list[Measured]
    attribution: str | None
    writable: bool
    limits: Limits
    versions: dict[str, str]


class Health(Schema):
    status: str


class Reloaded(Schema):
    changed: bool
    items: int
