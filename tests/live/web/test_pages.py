"""The page's files: what is served, with which headers, and what never is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from berth.live.api import pages


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(pages.router())
    return TestClient(app)


def test_the_page_allows_nothing_inline_and_nothing_from_elsewhere(client: TestClient) -> None:
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<style" not in answer.text
    assert "style=" not in answer.text
    assert "//" not in answer.text.replace("http-equiv", "")  # no address of another host


@pytest.mark.parametrize("path", sorted(pages.WEB.rglob("*")), ids=lambda path: path.name)
def test_every_file_is_served_with_its_type_and_a_tag(client: TestClient, path: Path) -> None:
    if path.is_dir():
        return
    answer = client.get(f"/web/{path.relative_to(pages.WEB).as_posix()}")
    kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
    if path.suffix not in kinds:
        assert answer.status_code == 404
        return
    assert answer.content == path.read_bytes()
    assert answer.headers["content-type"].startswith(kinds[path.suffix])
    again = client.get(answer.url.path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(answer.url.path, headers={"If-None-Match": '"another"'})
    assert other.status_code == 200


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("text", ["another", "two"], ids=["of another size", "of the same size and time"])
def test_a_file_that_changed_has_another_tag(tmp_path: Path, text: str, restarted: bool) -> None:
    def served() -> TestClient:
        app = FastAPI()
        app.include_router(pages.router(tmp_path))
        return TestClient(app)

    def write(text: str) -> None:
        (tmp_path / "index.html").write_text(text)
        os.utime(tmp_path / "index.html", (1, 1))  # as in a reproducible image

    write("one")
    client = served()
    first = client.get("/")
    write(text)
    client = served() if restarted else client
    second = client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (second.status_code, second.text) == (200, text)


@pytest.mark.parametrize(
    "path",
    [
        "/web/../api/tokens.py",
        "/web/..%2fapi%2ftokens.py",
        "/web/%2e%2e/views.py",
        "/web//etc/passwd",
        "/web/%2fetc%2fpasswd",
        "/web/vendor/uplot/../../../views.py",
        "/web/",
        "/web/index.html%00.js",
    ],
)
def test_no_path_leads_out_of_the_folder(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_no_module_reads_markup_from_a_string() -> None:
    for path in pages.WEB.glob("*.js"):
        text = path.read_text()
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert way not in text, f"{path.name}: {way}"


def test_the_library_that_is_brought_along_has_its_licence() -> None:
    assert "MIT" in (pages.WEB / "vendor" / "uplot" / "LICENSE").read_text()
