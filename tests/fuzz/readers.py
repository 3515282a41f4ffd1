"""Every reader: how its valid files are made, which of them are mutated, and how they are read."""

from __future__ import annotations

import functools
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parents[1] / "fixtures" / "format-1"
SEEN = ("sunny yellow", "boat sea", "snow")


@dataclass(frozen=True)
class Reader:
    """One kind of input.

    Where the content is dcmh's own, `compared`: a load must give what it gave before the mutation, or `dcmh check` of the
    path `check` must notice the damage.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    files: tuple[str, ...]
    compared: bool = False
    check: str | None = None
    refused: bool = False  # also the valid files are: what matters is how


# -- data ---------------------------------------------------------------------------------------------------------------

ROWS = [
    {"image": f"{row}.png", "text": f"a {word} dog, on the beach", "labels": ["dog", word], "id": f"item {row}"}
    for row, word in enumerate(("red", "blue", "green", "old"))
]


def _photos(folder: Path) -> None:
    from PIL import Image

    for row in range(len(ROWS)):
        Image.new("RGB", (8, 8), (50 * row, 9, 9)).save(folder / f"{row}.png")


def _make_jsonl(folder: Path) -> None:
    _photos(folder)
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def _make_table(folder: Path, *, name: str, comma: str) -> None:
    _photos(folder)
    lines = [comma.join(("file", "text", "labels", "split"))]
    for row, part in zip(ROWS, ("query", "train", "", "database"), strict=True):
        lines.append(comma.join((row["image"], f'"{row["text"]}"', ";".join(row["labels"]), part)))
    (folder / name).write_text("\n".join(lines) + "\n")


def _make_texts(folder: Path) -> None:
    _photos(folder)
    for row in ROWS:
        (folder / row["image"]).with_suffix(".txt").write_text(row["text"])


def _make_npy(folder: Path) -> None:
    np.save(folder / "all.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    np.save(folder / "one.npy", np.arange(3.0))
    lines = [{"sound": f"all.npy#{row}", "text": "dog beach"} for row in range(4)] + [{"sound": "one.npy", "text": "x"}]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _make_frame(folder: Path, *, name: str) -> None:
    import pyarrow.feather
    import pyarrow.parquet
    from PIL import Image

    pictures = []
    for row in range(len(ROWS)):
        file = io.BytesIO()
        Image.new("RGB", (8, 8), (50 * row, 9, 9)).save(file, "PNG")
        pictures.append(file.getvalue())
    columns = {key: [row[key] for row in ROWS] for key in ("text", "labels", "id")}
    table = pyarrow.table({**columns, "image": pictures, "sound": [[1.0, 2.0]] * len(ROWS)})
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(table, folder / name, row_group_size=2)
    elif name.endswith(".feather"):
        pyarrow.feather.write_feather(table, folder / name, compression="uncompressed")
    else:
        with tarfile.open(folder / name, "w") as tar:
            for row, picture in zip(ROWS, pictures, strict=True):
                about = json.dumps({"labels": row["labels"], "width": 8}).encode()
                for suffix, content in (("png", picture), ("txt", row["text"].encode()), ("json", about)):
                    member = tarfile.TarInfo(f"{row['id'][-1]}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def _load_frame(folder: Path, *, name: str) -> Any:
    from dcmh import load_dataset
    from dcmh.inputs.images import unreadable

    data = load_dataset(folder / name, modalities="image,text,sound?", keep_partial=True)
    return data.fingerprint(), unreadable(data.image, workers=1)


def _load(folder: Path, **options: Any) -> Any:
    from dcmh import load_dataset

    data = load_dataset(folder, **options)
    return data.fingerprint(), [len(column) for column in data.columns.values()]


def _arrays() -> dict[str, Any]:
    from scipy.sparse import csc_array

    random = np.random.default_rng(0)
    bags = (random.random((6, 9)) < 0.3).astype(np.float64)
    return {"IAll": random.random((6, 4)), "YAll": csc_array(bags), "LAll": np.eye(6, 3, dtype=np.uint8)}


def _make_mat5(folder: Path, *, compressed: bool) -> None:
    from scipy.io import savemat

    texts = np.array([f"photo of {row}" for row in range(6)], object)
    savemat(folder / "data.mat", {**_arrays(), "caption": texts}, do_compression=compressed)


def _make_mat73(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "data.mat", "w", userblock_size=512) as file:
        arrays = _arrays()
        file["IAll"], file["LAll"] = arrays["IAll"].T, arrays["LAll"].T
        bags = file.create_group("YAll")
        bags.attrs["MATLAB_sparse"] = np.uint64(6)
        bags["data"], bags["ir"], bags["jc"] = arrays["YAll"].data, arrays["YAll"].indices, arrays["YAll"].indptr
        file.create_dataset("images", data=np.zeros((6, 3, 4, 4), np.uint8), chunks=(1, 3, 4, 4), compression="gzip")


def _load_mat(folder: Path) -> Any:
    from dcmh import load_dataset
    from dcmh.data import Images

    data = load_dataset(folder / "data.mat")
    for row in range(len(data)) if isinstance(data.columns.get("image"), Images) else ():
        data.columns["image"].source(row)


def _make_picture(folder: Path, *, kind: str) -> None:
    from PIL import Image

    import dcmh.inputs.images  # noqa: F401 - registers HEIF

    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    options = {"progressive": True} if kind == "JPEG" else {}
    Image.fromarray(pixels).save(folder / f"a.{kind.lower()}", kind, **options)


def _decode(folder: Path) -> Any:
    from dcmh.inputs import images

    (file,) = folder.iterdir()
    images.decode(file.read_bytes(), 24)
    images.thumbnail(file, 16)


# -- models and indexes ---------------------------------------------------------------------------------------------------


def _make_model(folder: Path) -> None:
    _make_older_model(folder)
    _add_checksums(folder / "model")


def _make_older_model(folder: Path) -> None:
    shutil.copytree(FIXTURES / "model", folder / "model")
    (folder / "model" / "run.json").write_text(
        json.dumps({"data": {"data": "toy"}, "versions": {"dcmh": "0"}, "command": "dcmh train", "skipped": 0})
    )


def _add_checksums(path: Path) -> None:
    """Bring a folder of an older version to what this version writes."""
    from dcmh.cli.check import verify
    from dcmh.search.check import Check

    verify(Check(repair=True), str(path))


def _load_model(folder: Path) -> Any:
    import dcmh
    from dcmh.cli.info import _look

    model = dcmh.load(folder / "model")
    codes = model.encode(text=["sunny yellow boat", "snow"]), model.encode(sound=np.arange(12.0).reshape(2, 6))
    _look(folder / "model", str(folder / "model"))
    return [code.tolist() for code in codes]


def _make_index(folder: Path) -> None:
    from dcmh.search import SearchIndex

    shutil.copytree(FIXTURES / "index.dcmh", folder / "index.dcmh")
    SearchIndex.open(folder / "index.dcmh").close()  # which migrates it
    _add_checksums(folder / "index.dcmh")


def _load_index(folder: Path) -> Any:
    from dcmh.cli.info import _look
    from dcmh.search import SearchIndex

    with SearchIndex.open(folder / "index.dcmh") as index:
        hits = [[(hit.name, hit.distance, hit.text) for hit in index.search(text=text, k=8)] for text in SEEN]
        found = hits, [str(index.item(number)) for number in (1, 7, 24)], len(index)
    _look(folder / "index.dcmh", str(folder))
    return found


def _make_hamming(folder: Path) -> None:
    from dcmh.index import HammingIndex

    index = HammingIndex(64)
    index.add(np.arange(50), np.random.default_rng(0).integers(0, 256, (50, 8), dtype=np.uint8))
    index.save(folder)


def _load_hamming(folder: Path) -> Any:
    from dcmh.index import HammingIndex

    index = HammingIndex.load(folder)
    (hits,) = index.search(np.zeros((1, 8), np.uint8), 5)
    return list(hits)


def _make_fine(folder: Path) -> None:
    from dcmh.index.fine import FineIndex

    vectors = np.random.default_rng(0).integers(-99, 99, (50, 64), dtype=np.int8)
    FineIndex.of(np.arange(50), vectors).save(folder, 3)


def _load_fine(folder: Path) -> Any:
    from dcmh.index.fine import FineIndex

    ids, vectors = FineIndex.load(folder, 3).live()
    return ids.tolist(), vectors.tolist()


def _make_codes(folder: Path) -> None:
    np.save(folder / "codes.npy", np.zeros((3, 2), np.uint8))
    (folder / "ids.txt").write_text("a\nb\nc\n")
    record = {"kind": "dcmh codes", "format": 1, "version": "0.1.0", "bits": 16, "count": 3, "modality": "text"}
    (folder / "codes.json").write_text(json.dumps(record))


def _load_codes(folder: Path) -> Any:
    from dcmh.cli.info import _look

    return _look(folder, str(folder))


@functools.cache
def _training() -> Any:
    """A small training set, and a function that makes a run of it."""
    from dcmh import DCMH
    from dcmh.data import Dataset, Vectors

    random = np.random.default_rng(0)
    classes = np.arange(24) % 3
    columns = {name: Vectors(random.normal(size=(24, 5)).astype(np.float32) + classes[:, None]) for name in ("a", "b")}
    data = Dataset(columns, labels=np.eye(3, dtype=np.uint8)[classes])

    def model() -> Any:
        return DCMH(bits=4, hidden=4, epochs=3, batch_size=8, device="cpu", validation=0)

    return data, model


def _make_checkpoint(folder: Path) -> None:
    from dcmh.errors import TrainingStopped

    data, model = _training()
    try:
        model().fit(data, fine=0, checkpoint=folder / "checkpoint.safetensors", stop=lambda: True)
    except TrainingStopped:
        return
    raise AssertionError


def _resume(folder: Path) -> Any:
    from dcmh.cli.info import _checkpoint

    _checkpoint(folder / "checkpoint.safetensors")
    data, model = _training()
    resumed = model().fit(data, fine=0, checkpoint=folder / "checkpoint.safetensors")
    return resumed.encode(a=data["a"]).tolist()


def _make_block(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    columns = {
        "id": ["a", "b"],
        "trace": [bytes(16)] * 2,
        "error": [None, "cut off"],
        "content": [bytes(16), None],
        "taken": pa.array([0, None], pa.timestamp("s")),
        "code_image": pa.array([bytes(8), None], pa.binary(8)),
        "fine_image": pa.array([bytes(128), None], pa.binary(128)),
    }
    table = pa.table(columns).replace_schema_metadata({"dcmh": "block"})
    parquet.write_table(table, folder / "block-000000.parquet", use_dictionary=False, write_page_checksum=True)


def _load_block(folder: Path) -> Any:
    from dcmh.errors import DataError
    from dcmh.search.block_files import read_block

    try:
        return read_block(folder / "block-000000.parquet")
    except (ValueError, OSError) as error:
        raise DataError(str(error)) from error


# -- results, settings, and small files -----------------------------------------------------------------------------------


def _direction() -> dict[str, Any]:
    rows = [{"radius": r, "precision": 0.5, "recall": r / 8, "f": r / 16} for r in range(9)]
    return {
        "queries": 100,
        "database": 900,
        "chance": 0.25,
        "without_relevant": 0,
        "map": {"stable": 0.6, "expected": 0.6, "best": 0.7, "worst": 0.5},
        "precision_at": {"1": 0.5},
        "recall_at": {"1": 0.5},
        "lookup": rows,
        "lookup_per_query": rows,
        "by_distance": [{"distance": r, "points": 10, "relevant": 5} for r in range(9)],
    }


def _report() -> dict[str, Any]:
    sizes = {"queries": 100, "database": 900, "train": 500, "chance": 0.25, "without_relevant": 0, "k": None}
    return {"bits": 8, **sizes, "image_to_text": _direction(), "text_to_image": _direction()}


def _make_results(folder: Path) -> None:
    for seed in range(2):
        record = {
            "format": 1,
            "data": {"name": "toy", "source": "toy", "items": 1000, "fingerprint": "f"},
            "split": {"folder": "given", "seed": None, "queries": 100, "database": 900, "train": 500},
            "features": "cnn",
            "label": "cca",
            "title": "CCA",
            "method": "cca",
            "varied": {},
            "parameters": {"bits": 8, "seed": seed},
            "bits": 8,
            "seed": seed,
            "ties": "stable",
            "report": _report(),
        }
        (folder / f"{seed}.json").write_text(json.dumps(record))


def _load_results(folder: Path) -> Any:
    from dcmh.cli.info import _look
    from dcmh.experiments import tables

    _look(folder, str(folder))
    groups = tables.groups(tables.read(folder))
    for table in tables.tables(groups):
        tables.render(table, "md")
    tables.figures(groups, "pr")


def _make_report(folder: Path) -> None:
    _make_older_model(folder)
    (folder / "model" / "report.json").write_text(json.dumps(_report()))


def _load_report(folder: Path) -> Any:
    from dcmh.cli.info import _look
    from dcmh.search.calibration import Calibration
    from dcmh.service.state import _read_measures

    Calibration.read(folder / "model", fine=False)
    _read_measures(folder / "model" / "report.json")
    _look(folder / "model", str(folder / "model"))


SETTINGS = """bits = 32
seed = 3
epochs = 5
learning-rate = 0.001
similarity = "labels"
text = "captions.csv"
modalities = "image,text"
[option]
ridge = 0.5
"""
BENCH = """data = "toy"
features = ["cnn", "sift-64"]
bits = [16, 32]
seeds = [0, 1]
ties = "stable"
k = 50
[split]
queries = 20
train = 100
seed = 0
[methods.cca]
ridge = 1e-3
[methods.cmfh]
[methods.cca-fine]
method = "cca"
[methods.cca-fine.grid]
ridge = [0.5, 1, 2]
"""


def _load_settings(folder: Path) -> Any:
    from dcmh.cli.options import read_config

    read_config(folder / "settings.toml")


def _load_bench(folder: Path) -> Any:
    from dcmh.experiments import bench

    bench.plan(bench.read(folder / "bench.toml"))


def _make_vocabulary(folder: Path) -> None:
    shutil.copyfile(FIXTURES / "model" / "text.vocabulary.txt", folder / "vocabulary.txt")


def _load_vocabulary(folder: Path) -> Any:
    from dcmh.util.text import BagOfWords

    bag = BagOfWords.load(folder / "vocabulary.txt")
    return bag.transform(list(SEEN)).tolist(), bag.nearest("yelow"), len(bag)


@functools.cache
def _toy() -> Any:
    from dcmh import load_dataset

    return load_dataset("toy", n=40)


def _make_split(folder: Path) -> None:
    _toy().split(5, 20, seed=0).save(folder / "split.json")


def _load_split(folder: Path) -> Any:
    from dcmh.data import Split

    Split.load(folder / "split.json", _toy(), without_gone=True)


def _make_similarity(folder: Path, *, name: str) -> None:
    ids = _toy().ids
    pairs = [(ids[row], ids[row + 1], row % 2) for row in range(12)]
    if name.endswith("jsonl"):
        text = "".join(json.dumps(pair) + "\n" for pair in pairs)
    else:
        text = "a,b,similar\n" + "".join(f"{a},{b},{similar}\n" for a, b, similar in pairs)
    (folder / name).write_text(text)


def _load_similarity(folder: Path) -> Any:
    from dcmh.methods.dcmh import similarity

    (file,) = folder.iterdir()
    similarity.build(f"pairs:{file}", _toy())


def _load_vector(folder: Path) -> Any:
    index = _service()[1]
    hits = index.search(vector=folder / "query.npy", k=3)
    return [(hit.name, hit.distance) for hit in hits]


# -- requests ---------------------------------------------------------------------------------------------------------------


@functools.cache
def _service() -> Any:
    """A client of the service, and its index."""
    import tempfile

    from starlette.testclient import TestClient

    from dcmh.search import SearchIndex
    from dcmh.service import Settings, create_app

    folder = Path(tempfile.mkdtemp(dir=Path(tempfile.gettempdir())))
    shutil.copytree(FIXTURES / "index.dcmh", folder / "index.dcmh")
    (folder / "token").write_text("a-token-of-sufficient-length\n")
    settings = Settings(rate=0, access_log=None, token_file=str(folder / "token"))
    client = TestClient(create_app(folder / "index.dcmh", settings), raise_server_exceptions=True)
    client.__enter__()
    client.headers["Authorization"] = "Bearer a-token-of-sufficient-length"
    return client, SearchIndex.open(folder / "index.dcmh")


def _send(folder: Path, *, targets: tuple[str, ...], kind: str) -> Any:
    from dcmh.errors import QueryError

    client, _ = _service()
    (file,) = folder.iterdir()
    for target in targets:
        answer = client.post(target, content=file.read_bytes(), headers={"Content-Type": kind})
        assert answer.status_code < 500 or answer.status_code == 503, f"{target}: {answer.status_code} {answer.text}"
        answer.json()
    if answer.status_code >= 400:
        raise QueryError(answer.text)


def _make_body(folder: Path) -> None:
    (folder / "body.json").write_text(json.dumps({"text": list(SEEN)}))


BOUNDARY = "fuzzed-boundary"


def _make_form(folder: Path) -> None:
    import io

    from PIL import Image

    picture = io.BytesIO()
    Image.new("RGB", (20, 20), (9, 99, 200)).save(picture, "PNG")
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; name="
    parts = [f'{head}"text"\r\n\r\nsunny yellow\r\n', f'{head}"labels"\r\n\r\nsea\r\n']
    picture_head = f'{head}"image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    body = "".join([*parts, picture_head]).encode() + picture.getvalue() + f"\r\n--{BOUNDARY}--\r\n".encode()
    (folder / "form.txt").write_bytes(body)


def _written(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).write_text(content), None][1]


_table = functools.partial
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
PICTURES = {
    kind.lower(): Reader(functools.partial(_make_picture, kind=kind), _decode, ("a.*",))
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")
}
READERS: dict[str, Reader] = {
    **{
        name.rpartition(".")[2]: Reader(
            functools.partial(_make_frame, name=name), functools.partial(_load_frame, name=name), (name,)
        )
        for name in ("rows.parquet", "rows.feather", "rows.tar")
    },
    "pairs.jsonl": Reader(_make_jsonl, _load, ("pairs.jsonl",)),
    "pairs.csv": Reader(_table(_make_table, name="pairs.csv", comma=","), _load, ("pairs.csv",)),
    "pairs.tsv": Reader(_table(_make_table, name="pairs.tsv", comma="\t"), _load, ("pairs.tsv",)),
    "captions": Reader(_table(_make_table, name="captions.csv", comma=","), _load, ("captions.csv",)),
    "texts": Reader(_make_texts, _load, ("*.txt",)),
    "npy": Reader(_make_npy, functools.partial(_load, modalities="sound,text"), ("*.npy",)),
    "mat5": Reader(functools.partial(_make_mat5, compressed=False), _load_mat, ("data.mat",)),
    "mat5-zipped": Reader(functools.partial(_make_mat5, compressed=True), _load_mat, ("data.mat",)),
    "mat73": Reader(_make_mat73, _load_mat, ("data.mat",)),
    **PICTURES,
    "model": Reader(_make_model, _load_model, ("model/*",), compared=True, check="model"),
    "index": Reader(
        _make_index,
        _load_index,
        ("index.dcmh/*", "index.dcmh/*/*", "index.dcmh/codes/*/*"),
        compared=True,
        check="index.dcmh",
    ),
    "catalogue": Reader(_make_index, _load_index, ("index.dcmh/catalogue.sqlite",), compared=True, check="index.dcmh"),
    "hamming": Reader(_make_hamming, _load_hamming, ("*",), compared=True),
    "fine": Reader(_make_fine, _load_fine, ("*",), compared=True),
    "codes": Reader(_make_codes, _load_codes, ("codes.json",)),
    "checkpoint": Reader(_make_checkpoint, _resume, ("*.safetensors",), compared=True),
    "blocks": Reader(_make_block, _load_block, ("*.parquet",)),
    "results": Reader(_make_results, _load_results, ("*.json",)),
    "report": Reader(_make_report, _load_report, ("model/report.json", "model/run.json")),
    "settings": Reader(_written("settings.toml", SETTINGS), _load_settings, ("*.toml",)),
    "bench": Reader(_written("bench.toml", BENCH), _load_bench, ("*.toml",)),
    "vocabulary": Reader(_make_vocabulary, _load_vocabulary, ("*.txt",)),  # the checksum is in the model folder
    "split": Reader(_make_split, _load_split, ("*.json",)),
    "similarity.csv": Reader(functools.partial(_make_similarity, name="p.csv"), _load_similarity, ("*",)),
    "similarity.jsonl": Reader(functools.partial(_make_similarity, name="p.jsonl"), _load_similarity, ("*",)),
    "vector": Reader(lambda folder: np.save(folder / "query.npy", np.arange(6.0)), _load_vector, ("*.npy",)),
    "http-json": Reader(
        _make_body, functools.partial(_send, targets=("/api/encode",), kind="application/json"), ("*",)
    ),
    "http-form": Reader(
        _make_form,
        functools.partial(_send, targets=("/api/search?k=3", "/api/encode", "/api/items"), kind=MULTIPART),
        ("*",),
        refused=True,  # the model of the index takes no pictures
    ),
}
