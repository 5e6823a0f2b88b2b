"""Makes the description on PyPI of README.md: a page there can neither follow a link into the repository nor show its pictures.

A relative link becomes its text, and a picture goes. Once the repository has a public address, they should lead there instead.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^]]*\]\((?!https?://)[^)]*\)\n+", re.MULTILINE)
LINK = re.compile(r"\[((?:[^]\[]|\[[^]]*\])*)\]\((?!https?://)[^)]*\)")


class DescriptionHook(MetadataHookInterface):
    """The hook that hatchling finds here."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": LINK.sub(r"\1", PICTURE.sub("", text))}
