"""The OpenAPI schema, fuzzed: whatever it allows or forbids, answers are those that it describes."""

from __future__ import annotations

import contextlib

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from dcmh.service import Settings, create_app

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ENDPOINTS = [
    "GET /api/search",
    "POST /api/search",
    "GET /api/items/{id}",
    "DELETE /api/items/{id}",
    "GET /api/items/{id}/image",
    "GET /api/items/{id}/thumbnail",
    "GET /api/items/{id}/similar",
    "POST /api/items",
    "POST /api/encode",
    "GET /api/duplicates",
    "GET /api/words",
    "GET /api/overview",
    "GET /api/info",
    "GET /api/health",
    "POST /api/reload",
    "GET /metrics",
]


@contextlib.asynccontextmanager
async def nothing(app):
    yield


@pytest.fixture(scope="module")
def schema(ready):
    """An application of its own: each request starts and ends it, which must not close it."""
    app = create_app(ready / "photos.dcmh", Settings(rate=0, access_log=None))
    app.router.lifespan_context = nothing
    yield schemathesis.openapi.from_asgi("/openapi.json", app)
    app.state.service.close()


def test_every_endpoint_is_fuzzed(schema):
    assert sorted(found.ok().label for found in schema.get_all_operations()) == sorted(ENDPOINTS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "forbidden"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_answers_are_as_described(schema, endpoint, mode):
    method, path = endpoint.split()
    operation = schema[path][method]
    if mode == GenerationMode.NEGATIVE and not (operation.query or operation.path_parameters or operation.body):
        pytest.skip("there is no parameter to get wrong")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case):
        case.call_and_validate(checks=CHECKS)

    ask()
