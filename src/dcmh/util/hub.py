"""Folders of the Hugging Face hub, downloaded when an address says so: hf://OWNER/NAME or hf://OWNER/NAME@REVISION."""

from __future__ import annotations

from pathlib import Path

from dcmh.errors import ModelError, needs

PREFIX = "hf://"


def download(address: str) -> Path:
    """The folder of an address, in the hub's cache on this machine."""
    with needs("Models of the Hugging Face hub need huggingface_hub", "huggingface_hub"):
        import huggingface_hub
    name, _, revision = address.removeprefix(PREFIX).strip("/").partition("@")
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision or None))
    except (OSError, ValueError) as error:  # no network, no such model, no permission, or a name that is not one
        raise ModelError(
            f"Cannot get {address}: {str(error).strip().partition(chr(10))[0]}",
            which=address,
            hint="Check the name and the network, or download the model and give its folder.",
        ) from error
