"""Serves the files of the status page, with a policy that lets them load nothing else."""

from __future__ import annotations

from importlib import resources

from aiohttp import web

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FILES = {
    "/": ("index.html", "text/html"),
    "/status.js": ("status.js", "text/javascript"),
    "/status.css": ("status.css", "text/css"),
}


def add_page_routes(app: web.Application) -> None:
    """Put the page on the application; its files are read once."""
    directory = resources.files("resync.admin.page")
    for path, (name, content_type) in _FILES.items():
        text = (directory / name).read_text(encoding="utf-8")
        app.router.add_get(path, _Page(text, content_type).get)


class _Page:
    def __init__(self, text: str, content_type: str) -> None:
        self._text = text
        self._content_type = content_type

    async def get(self, request: web.Request) -> web.Response:
        return web.Response(
            text=self._text,
            content_type=self._content_type,
            charset="utf-8",
            headers={"Content-Security-Policy": _POLICY, "X-Frame-Options": "DENY"},
        )
