"""Which frames of a session go into a dataset: every mode is a filter over facts of sealing. Spec §4.3."""

from dataclasses import dataclass

import polars as pl

#: Columns of the lake's frames that the filters look at.
FACTS = ("session_id", "seq", "t_ms", "is_keyframe", "n_events", "has_action")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """`frame_sampling` of a resolved request: workers know it without the models of the database."""

    mode: str
    #: Of `every_n_ms`; the other modes take none.
    interval_ms: int | None = None
    keep_action_frames: bool = False


def select_frames(frames: pl.LazyFrame, sampling: Sampling) -> pl.LazyFrame:
    """The frames that the sampling takes, in no particular order.

    Args:
        frames: one row per frame with at least `FACTS`, whole sessions, any order.
    """
    chosen = _chosen(sampling)
    if sampling.keep_action_frames:
        chosen = chosen | pl.col("has_action")
    return frames.filter(chosen)


def _chosen(sampling: Sampling) -> pl.Expr:
    match sampling.mode:
        case "event_only":
            return pl.col("n_events") > 0
        case "every_n_ms":
            assert sampling.interval_ms is not None
            slot = pl.col("t_ms") // sampling.interval_ms
            # `seq` follows (t_ms, frame_id), so that frames of one instant do not tie.
            return pl.col("seq") == pl.col("seq").min().over("session_id", slot)
        case "keyframes_only":
            return pl.col("is_keyframe")
        case "all":
            return pl.lit(True)
        case unknown:
            raise ValueError(f"No sampling is called {unknown}.")
