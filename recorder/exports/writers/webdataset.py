"""WebDataset files: tar archives of frames with pictures and events. Spec §4.3 (format `webdataset`)."""

from operator import itemgetter

import polars as pl

from recorder.exports.schemas import EVENTS
from recorder.exports.writers.rows import (
    FRAME_FACTS,
    Output,
    image_names,
    image_portions,
    json_forms,
    keys,
)
from recorder.exports.writers.ustar import Archive
from recorder.storage.blobs import Blobs


def write_samples(frames: pl.DataFrame, events: pl.DataFrame, blobs: Blobs, file: Output) -> None:
    """Write an archive of samples; no more than some hundred frames with their pictures are in memory.

    A sample's members are `<key>.events.json` (list of events, may be empty), `<key>.jpg`, `.png` or `.webp`
    (missing once the bytes have expired) and `<key>.json` (the frame).

    Args:
        frames: columns of `schemas.FRAMES` but `image`, and `object`, `offset`, `length`, in the order of
            its sort key.
        events: columns of `schemas.EVENTS`, those bound to the frames, in the order of its sort key.
    """
    paired = _with_events(frames, events)
    names, texts = image_names(paired), _texts(paired)
    samples = zip(keys(paired), names, texts, paired["events"].to_list(), strict=True)
    with Archive(file) as archive:
        for images in image_portions(paired, blobs):
            for image, (key, name, text, own) in zip(images, samples, strict=False):
                members = [(f"{key}.events.json", own.encode())]
                if image is None:
                    text = text.replace(f'"image":"{name}"', '"image":null')
                else:
                    members.append((name, image))
                members.append((f"{key}.json", text.encode()))
                for member, content in sorted(members, key=itemgetter(0)):
                    archive.add(member, content)


def _with_events(frames: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """The frames with `events`: the JSON list of those bound to each."""
    texts = json_forms(events).select(
        "session_id",
        pl.col("frame_seq").alias("seq"),
        pl.struct(sorted(EVENTS.names)).struct.json_encode().alias("events"),
    )
    lists = texts.group_by("session_id", "seq", maintain_order=True).agg(pl.col("events").str.join(","))
    found = frames.join(lists, on=["session_id", "seq"], how="left", maintain_order="left")
    return found.with_columns(pl.format("[{}]", pl.col("events").fill_null("")).alias("events"))


def _texts(frames: pl.DataFrame) -> list[str]:
    """Each frame as JSON, with the name of its picture."""
    facts = json_forms(frames.select(FRAME_FACTS.names)).with_columns(image=pl.Series(image_names(frames)))
    return facts.select(pl.struct(sorted(facts.columns)).struct.json_encode()).to_series().to_list()
