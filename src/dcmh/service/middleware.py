"""The middleware around every request: host check, rate limit, size limit, security headers, access log, metrics."""

from __future__ import annotations

import secrets
import time

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dcmh.service import logs, problems, uploads
from dcmh.service.problems import Problem
from dcmh.service.state import Service

# Scripts, styles and pictures come from this server only; blob: is a picture that the user has dropped on the page.
CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": CONTENT_POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
    b"cache-control": b"no-store",
}
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
UNLIMITED = {"/api/health", "/metrics"}  # monitoring is not rate limited
SEARCH = "/api/search"
PICTURE_COST = 10.0
FORM_OVERHEAD = 1_000_000  # bytes of a form besides the picture


class RequestMiddleware:
    """The outermost middleware. No exception leaves it, so no stack trace reaches a client."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await _RequestCycle(self.app, self.service, scope, receive, send).run()


class _RequestCycle:
    """One request and its response."""

    def __init__(self, app: ASGIApp, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.app, self.service, self.scope = app, service, scope
        self._receive, self._send = receive, send
        self.began = time.perf_counter()
        self.id = secrets.token_hex(8)
        self.client = scope["client"][0] if scope.get("client") else "-"
        self.max_bytes = service.settings.upload_bytes + FORM_OVERHEAD
        self.status = 0
        self.sent = 0
        self.received = 0
        self.route: str | None = None

    async def run(self) -> None:
        service = self.service
        service.active += 1
        try:
            self._check()
            kept = await self._kept_answer()
            if kept is None:
                await self.app(self.scope, self.receive, self.send)
            else:  # routing and reading the parameters takes longer than the rest
                self.route = SEARCH
                await Response(kept, media_type="application/json")(self.scope, self.receive, self.send)
        except Problem as problem:
            await self._send_problem(problem)
        except Exception:
            logs.events.exception("request %s failed", self.id)
            await self._send_problem(problems.bug(self.id))
        finally:
            service.active -= 1
            self._record()

    async def _kept_answer(self) -> bytes | None:
        """The cached response of the same search, if the index has not changed since."""
        scope = self.scope
        if scope["method"] != "GET" or scope["path"].removeprefix(scope.get("root_path", "")) != SEARCH:
            return None
        return await self.service.kept_answer(scope["query_string"])

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            if self.received > self.max_bytes:
                raise uploads.too_large(self.service.settings)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            names = {name for name, _ in message["headers"]}
            extra = [(name, value) for name, value in HEADERS.items() if name not in names]
            message["headers"] = [*message["headers"], *extra, (b"x-request-id", self.id.encode())]
        elif message["type"] == "http.response.body":
            self.sent += len(message.get("body", b""))
        await self._send(message)

    def _check(self) -> None:
        scope = self.scope
        headers = Headers(scope=scope)
        self._check_host(headers.get("host", ""))
        writes = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if writes and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            hint = "Send it from the page of this server."
            raise Problem(403, "Requests from other sites are refused.", hint, kind="cross-site")
        if scope["path"] not in UNLIMITED:
            self.service.rate_limiter.take(self.client, PICTURE_COST if writes else 1.0)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self.max_bytes:
            raise uploads.too_large(self.service.settings)

    def _check_host(self, host: str) -> None:
        """Against DNS rebinding: on loopback only the names of this server are accepted."""
        allowed, server = self.service.settings.hosts, self.scope.get("server")
        local = server is not None and (server[0] in LOOPBACK or server[0].startswith("127."))
        if not local and not allowed:
            return
        name = host_name(host)
        if name not in LOOPBACK and name not in allowed:
            hint = "Use the address that dcmh serve printed, or start it with --allow-host NAME."
            raise Problem(421, "The request is for a host name that this server does not have.", hint)

    async def _send_problem(self, problem: Problem) -> None:
        if not self.status:
            await problem.response()(self.scope, self.receive, self.send)

    def _record(self) -> None:
        seconds = time.perf_counter() - self.began
        scope, status = self.scope, self.status or 499  # the client has disconnected
        route = self.route or str(getattr(scope.get("route"), "path", "other"))
        self.service.metrics.observe(route, scope["method"], status, seconds)
        logs.log_request(self.id, self.client, scope["method"], scope["path"], route, status, 1000 * seconds, self.sent)


def host_name(host: str) -> str:
    """The name in a Host header: without port, lower-case; an IPv6 address without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")
