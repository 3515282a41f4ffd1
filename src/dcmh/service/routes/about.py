"""Endpoints about the server: what it serves, the known words, health, reload, metrics."""

from __future__ import annotations

import platform
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from dcmh import __version__
from dcmh.service import metrics, schemas
from dcmh.service.problems import document
from dcmh.service.routes.search import MAX_HITS, MAX_OFFSET, MAX_QUERY
from dcmh.service.state import OpenIndex, Service

router = APIRouter()


@router.get("/api/info", response_model=schemas.Info, responses=document(), summary="What is served, and its limits")
async def info(request: Request) -> Response:
    service: Service = request.app.state.service
    settings = service.settings

    def describe(opened: OpenIndex) -> schemas.Info:
        index = opened.index
        return schemas.Info(
            name=schemas.printable(Path(str(index.folder)).name),
            items=len(index),
            bits=index.bits,
            method=str(index.encoders.record["method"]),
            model=index.fingerprint,
            codes=index.modalities,
            asks=schemas.QueryModalities(text=index.encoders.text, image=index.encoders.picture),
            vocabulary=len(opened.words),
            text_encoder=opened.text_encoder,
            precision_measured=index.calibration.is_measured,
            measured=opened.measured,
            attribution=_attribution(index.root),
            writable=service.token is not None,
            limits=schemas.Limits(
                upload_bytes=settings.upload_bytes,
                megapixels=settings.megapixels,
                k=MAX_HITS,
                offset=MAX_OFFSET,
                text=MAX_QUERY,
            ),
            versions={"dcmh": __version__, "python": platform.python_version(), "numpy": np.__version__},
        )

    return (await service.with_index(describe)).response()


def _attribution(root: Path | None) -> str | None:
    """Whose pictures these are, from a file in their folder: some licences require that it is shown."""
    if root is None:
        return None
    try:
        with open(root / "ATTRIBUTION.txt", encoding="utf-8", errors="replace") as file:
            return file.read(MAX_QUERY).strip() or None
    except OSError:
        return None


@router.get(
    "/api/words", response_model=schemas.Words, responses=document(), summary="Known words, most frequent first"
)
async def words(
    request: Request,
    prefix: Annotated[str, Query(max_length=100, description="How the words begin")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 20,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    service: Service = request.app.state.service
    return (await service.with_index(lambda opened: opened.words.starting_with(prefix, limit, offset))).response()


@router.get(
    "/api/overview",
    response_model=schemas.Overview,
    responses=document(),
    summary="What the collection holds: words that find what they say, labels, folders",
)
async def overview(request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> Response:
    service: Service = request.app.state.service
    found = await service.overview()
    return schemas.Overview(
        topics=[schemas.Topic.model_validate(asdict(topic)) for topic in found.topics[:limit]],
        labels=list(found.labels[:limit]),
        folders=[schemas.printable(folder) for folder in found.folders[:limit]],
    ).response()


@router.head("/api/health", include_in_schema=False)
@router.get("/api/health", response_model=schemas.Health, responses=document(), summary="Whether the server answers")
async def health() -> Response:
    return schemas.Health(status="ok").response()


@router.post(
    "/api/reload", response_model=schemas.Reloaded, responses=document(403), summary="Load changes of the index now"
)
async def reload(request: Request) -> Response:
    service: Service = request.app.state.service
    changed = await service.reload(wait=True)
    items = await service.with_index(lambda opened: len(opened.index))
    return schemas.Reloaded(changed=changed, items=items).response()


@router.get(
    "/metrics",
    response_class=Response,
    responses=document()
    | {200: {"description": "Counters", "content": {"text/plain": {"schema": {"type": "string"}}}}},
    summary="Counters for Prometheus",
)
async def counters(request: Request) -> Response:
    service: Service = request.app.state.service
    items = await service.with_index(lambda opened: len(opened.index))
    gauges = {
        "dcmh_items": ("Items in the index.", items),
        "dcmh_requests_active": ("Requests in progress in this worker.", service.active),
        "dcmh_pictures_waiting": (
            "Pictures being uploaded, waiting or encoded in this worker.",
            service.pictures.pending,
        ),
        "dcmh_thumbnail_bytes": ("Thumbnails cached in memory by this worker.", service.thumbnails.bytes),
    }
    return Response(service.metrics.text(gauges), media_type=metrics.MEDIA_TYPE)
