"""Where Chromium is: that of the system, or the one that playwright has fetched."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "tests/page skipped: there is no Chromium. On Debian as root `make browser` installs it; "
    "elsewhere: .venv/bin/playwright install chromium"
)


@functools.cache
def find_chromium() -> str | None:
    for name in NAMES:
        found = shutil.which(name)
        # Ubuntu's is a script that asks for a snap.
        if found and subprocess.run([found, "--version"], capture_output=True, timeout=60).returncode == 0:
            return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        fetched = playwright.chromium.executable_path
    return fetched if Path(fetched).is_file() else None
