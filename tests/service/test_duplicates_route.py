"""GET /api/duplicates."""

from __future__ import annotations

import shutil

from served import COUNT

from dcmh.search import SearchIndex


def test_groups_are_paged_and_follow_changes(own, serve):

    photos = sorted((own / "photos").glob("*.png"))
    client = serve()
    before = client.get("/api/duplicates").json()
    assert before["compared"] <= COUNT
    copies = [shutil.copyfile(photo, own / f"{photo.stem}-copy.png") for photo in photos[:3]]
    with SearchIndex.open(own / "photos.dcmh") as index:
        index.add(copies)
    first = client.get("/api/duplicates?kind=exact&k=2").json()
    assert first["total"] == 3
    assert len(first["groups"]) == 2
    group = first["groups"][0]
    assert (group["kind"], group["keep"]) == ("exact", group["items"][0]["id"])
    assert group["items"][0]["width"] > 0
    original = min(group["items"], key=lambda item: item["id"])
    assert client.get(original["thumbnail"]).status_code == 200
    second = client.get(first["next"]).json()
    assert (len(second["groups"]), second["next"]) == (1, None)
    assert client.get("/api/duplicates?kind=other").status_code == 422
