"""Endpoints about the server: what it serves, which words it knows, how it is."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from dcmh import __version__
from dcmh.service import answers, metrics
from dcmh.service.problems import document
from dcmh.service.reload import Opened
from dcmh.service.search import FARTHEST, LONGEST, MOST, reply
from dcmh.service.state import Service

router = APIRouter()


@router.get("/api/info", response_model=answers.Info, responses=document(), summary="What is served, and its limits")
async def info(request: Request) -> Response:
    service: Service = request.app.state.service
    settings = service.settings

    def tell(opened: Opened) -> bytes:
        index = opened.index
        record = {
            "name": Path(str(index.folder)).name,
            "items": len(index),
            "bits": index.bits,
            "method": str(index.encoders.record["method"]),
            "model": index.fingerprint,
            "codes": index.modalities,
            "asks": {"text": index.encoders.text, "image": index.encoders.picture},
            "vocabulary": len(opened.words),
            "text_encoder": opened.text_encoder,
            "precision_measured": index.calibration.is_measured,
            "measured": opened.measured,
            "attribution": _attribution(index.root),
            "writable": service.token is not None,
            "limits": {
                "upload_bytes": settings.upload_bytes,
                "megapixels": settings.megapixels,
                "k": MOST,
                "offset": FARTHEST,
                "text": LONGEST,
            },
            "versions": {"dcmh": __version__, "python": platform.python_version(), "numpy": np.__version__},
        }
        return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")

    return reply(await service.look(tell))


def _attribution(root: Path | None) -> str | None:
    """Whose pictures these are, as a file in their folder says: some licences want it shown with them."""
    if root is None:
        return None
    try:
        with open(root / "ATTRIBUTION.txt", encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST).strip() or None
    except OSError:
        return None


@router.get(
    "/api/words", response_model=answers.Words, responses=document(), summary="Known words, most frequent first"
)
async def words(
    request: Request,
    prefix: Annotated[str, Query(max_length=100, description="How the words begin")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 20,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    service: Service = request.app.state.service
    record = await service.look(lambda opened: opened.words.starting_with(prefix, limit, offset))
    return reply(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))


@router.head("/api/health", include_in_schema=False)
@router.get("/api/health", response_model=answers.Health, responses=document(), summary="Whether the server answers")
async def health() -> Response:
    return reply(b'{"status": "ok"}')


@router.post(
    "/api/reload", response_model=answers.Reloaded, responses=document(403), summary="Take in changes of the index now"
)
async def reload(request: Request) -> Response:
    service: Service = request.app.state.service
    changed = await service.check(wait=True)
    items = await service.look(lambda opened: len(opened.index))
    return reply(json.dumps({"changed": changed, "items": items}).encode())


@router.get(
    "/metrics",
    response_class=Response,
    responses=document()
    | {200: {"description": "Counters", "content": {"text/plain": {"schema": {"type": "string"}}}}},
    summary="Counters for Prometheus",
)
async def counters(request: Request) -> Response:
    service: Service = request.app.state.service
    items = await service.look(lambda opened: len(opened.index))
    service.metrics.set("dcmh_reload_failures_total", service.served.failed)
    gauges = {
        "dcmh_items": ("Items that can be found.", float(items)),
        "dcmh_requests_active": ("Requests being answered by this worker.", float(service.active)),
        "dcmh_pictures_waiting": (
            "Pictures being uploaded, waiting or encoded in this worker.",
            service.pictures.inside,
        ),
        "dcmh_thumbnail_bytes": ("Thumbnails kept in memory by this worker.", float(service.thumbnails.bytes)),
    }
    return Response(service.metrics.text(gauges), media_type=metrics.MEDIA_TYPE)
