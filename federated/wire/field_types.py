"""Types of message fields, which limit names, numbers and texts when a message is decoded."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from msgspec import Meta

from federated.safe_text import MAX_TEXT
from federated.wire import topics

__all__ = [
    "AgentName",
    "Amount",
    "Crc",
    "Digest",
    "Name",
    "Natural",
    "ProgramVersion",
    "Score",
    "SoftwareName",
    "SoftwareOrNone",
    "SubmodelName",
    "SubmodelOrNone",
    "Text",
    "Transfer",
    "Url",
    "VersionName",
    "VersionOrNone",
    "WeightsCodec",
    "Word",
]

Name = Annotated[str, Meta(pattern=topics.NAME)]
AgentName = Annotated[str, Meta(pattern=topics.AGENT)]
SubmodelName = Annotated[str, Meta(pattern=topics.SUBMODEL)]
SubmodelOrNone = Annotated[str, Meta(pattern=rf"^\Z|{topics.SUBMODEL}")]
Transfer = Annotated[str, Meta(pattern=topics.TRANSFER)]
VersionName = Annotated[str, Meta(pattern=topics.VERSION)]
VersionOrNone = Annotated[str, Meta(pattern=rf"^\Z|{topics.VERSION}")]
# of a program; with the first digits of its wheel's sha256, the name of its environment
PROGRAM = r"[0-9][0-9A-Za-z.+!]{0,40}"
ProgramVersion = Annotated[str, Meta(pattern=rf"^{PROGRAM}\Z")]
SoftwareName = Annotated[str, Meta(pattern=rf"^{PROGRAM}-[0-9a-f]{{8}}\Z")]
SoftwareOrNone = Annotated[str, Meta(pattern=rf"^\Z|^{PROGRAM}-[0-9a-f]{{8}}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
# that of a store contains a signature and a session's token
Url = Annotated[str, Meta(max_length=4096)]
# codecs whose error is small beside a weight, not only beside its change
WeightsCodec = Literal["raw", "fp16", "fp16-zstd"]
Word = Annotated[str, Meta(max_length=128)]
Natural = Annotated[int, Meta(ge=0, lt=1 << 62)]
Amount = Annotated[float, Meta(ge=0, le=sys.float_info.max)]  # excludes infinity and NaN
# an accuracy from 0, or R2, which has no lower limit: with this one, sums over agents are finite
Score = Annotated[float, Meta(ge=-1e100, le=1)]
Crc = Annotated[int, Meta(ge=0, lt=1 << 32)]
