"""For mkdocs: files of the repository that pages link to become part of the site, under repository/."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that pages link to, and those that these link to."""
    waiting = [ROOT / name for name in ALWAYS]
    waiting += [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    seen = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if _outside(path):
            files.append(File.generated(config, f"repository/{path.relative_to(ROOT)}", abs_src_path=str(path)))
        if path.suffix == ".md":
            for link, _ in LINK.findall(path.read_text(encoding="utf-8")):
                target = (path.parent / link).resolve()
                if target.is_file() and _outside(target):
                    waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where these files are in the site."""
    here = page.file.src_uri
    source = Path(page.file.abs_src_path or ROOT)

    def moved(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            return match[0]
        outside = _outside(target)
        if not outside and not here.startswith("repository/"):
            return match[0]
        place = f"repository/{target.relative_to(ROOT)}" if outside else str(target.relative_to(ROOT / "docs"))
        return f"]({os.path.relpath(place, os.path.dirname(here) or '.')}{match[2] or ''})"

    return LINK.sub(moved, markdown)


def _outside(path: Path) -> bool:
    return path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "docs")
