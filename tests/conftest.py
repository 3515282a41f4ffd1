"""No test touches the user's cache folder."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory):
    """DCMH_HOME is a folder of this session: features are computed once a session."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DCMH_HOME", str(folder))
        patch.delenv("DCMH_DEVICE", raising=False)
        yield folder
