"""`recorder export` and `recorder verify`: creation and verification of datasets. Contract §9."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import (
    DEFAULT_URL,
    AsJson,
    FormatOption,
    KeyOption,
    Split,
    To,
    Url,
    Where,
    make_export_members,
    open_client_for_command,
    print_json,
)
from recorder.number_formats import format_count

if TYPE_CHECKING:
    from recorder.client import Client
    from recorder.exports.verify import VerifyReport


def export(
    workflow: Annotated[list[str], typer.Argument(help="One or more workflows.")],
    key: KeyOption,
    url: Url = DEFAULT_URL,
    format: FormatOption = "parquet",
    where: Where = None,
    split: Split = None,
    sampling: Annotated[
        str, typer.Option(help="event_only, every_n_ms, keyframes_only or all.")
    ] = "event_only",
    interval_ms: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="MS", help="With every_n_ms: milliseconds between frames.", show_default=False
        ),
    ] = None,
    keep_action_frames: Annotated[
        bool, typer.Option("--keep-action-frames", help="Also the frames on which an action happened.")
    ] = False,
    to: To = "signed_url",
    role_arn: Annotated[
        str | None, typer.Option(help="With s3://: the role that the service assumes.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="With s3://: the region of the bucket.")] = None,
    service_account: Annotated[
        str | None, typer.Option(help="With gs://: the account that the service acts as.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Name of this version of the dataset.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Wait until it is done, with a progress bar.")
    ] = False,
    download: Annotated[
        Path | None,
        typer.Option(
            help="Wait, then fetch what the service hosts into a folder and verify it.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Request a dataset; with --watch, wait for it."""
    members = make_export_members(
        workflow,
        format=format,
        to=to,
        where=where,
        sampling=_combine_sampling_options(sampling, interval_ms, keep_action_frames),
        split=split,
    )
    options = {
        "role_arn": (role_arn, "s3"),
        "region": (region, "s3"),
        "service_account": (service_account, "gcs"),
    }
    for name, (value, kind) in options.items():
        if value is not None:
            if members["destination"]["kind"] != kind:
                scheme = "s3" if kind == "s3" else "gs"
                raise typer.BadParameter(
                    f"belongs to --to {scheme}://…", param_hint=f"--{name.replace('_', '-')}"
                )
            members["destination"][name] = value
    if download is not None and members["destination"]["kind"] != "signed_url":
        raise typer.BadParameter(
            "belongs to --to signed_url; other destinations hold the files themselves",
            param_hint="--download",
        )
    with open_client_for_command(url, key) as client:
        made = client.create_export(members.pop("workflow"), **members, tag=tag)
        answer = _watch_dataset_for_command(client, made["id"]) if watch or download is not None else made
    if download is not None:
        answer["folder"] = str(
            _download_dataset_for_command(
                f"{url.rstrip('/')}/v1/exports/{made['id']}/manifest", key, download / made["id"]
            )
        )
    if as_json:
        print_json(answer)
        return
    typer.echo(answer.get("folder") or answer["manifest_url"] or answer["id"])


def verify(
    manifest: Annotated[
        str, typer.Argument(help="Manifest: path, folder, or address (of a store, or signed).")
    ],
    as_json: AsJson = False,
) -> None:
    """Check a dataset against its manifest: sizes, rows, hashes, row set."""
    report = _verify_dataset_for_command(manifest)
    if as_json:
        print_json({**asdict(report), "is_valid": report.is_valid})
    else:
        counts = (
            f"{format_count(report.shards, 'shard')}, {format_count(report.rows, 'row')}, "
            f"{format_count(report.frames, 'frame')}, {format_count(report.size_bytes, 'byte')}"
        )
        typer.echo("\n".join(report.problems) or f"{report.export_id}: {counts}, all as the manifest says.")
    raise typer.Exit(0 if report.is_valid else 1)


def _combine_sampling_options(mode: str, interval_ms: int | None, keep_action_frames: bool) -> str:
    """Return the three options as the one option that recipes take."""
    if mode == "every_n_ms" and interval_ms is None:
        raise typer.BadParameter("every_n_ms needs --interval-ms", param_hint="--sampling")
    if interval_ms is not None and mode != "every_n_ms":
        raise typer.BadParameter("belongs to --sampling every_n_ms", param_hint="--interval-ms")
    cadence = f":{interval_ms}" if interval_ms is not None else ""
    return f"{mode}{cadence}{'+actions' if keep_action_frames else ''}"


def _watch_dataset_for_command(client: "Client", export_id: str) -> dict[str, Any]:
    """Return the completed export; on Ctrl-C ask whether it continues, which it does without a terminal."""
    from recorder.client.progress import watch_export_progress

    try:
        export = watch_export_progress(client, export_id)
        if export["rows"] == 0:
            typer.echo(_describe_empty_dataset(export["format"]), err=True)
        return export
    except KeyboardInterrupt:
        if not _has_terminal_for_question() or typer.confirm(
            f"Leave {export_id} running?", default=True, err=True
        ):
            typer.echo(f"{export_id} goes on; read it at /v1/exports/{export_id}.", err=True)
        else:
            client.cancel_export(export_id)
            typer.echo(f"{export_id} is cancelled.", err=True)
        raise typer.Exit(1) from None


def _describe_empty_dataset(format: str) -> str:
    if format == "webdataset":
        return "The dataset is empty: no sealed session that passes the filter has frames, its samples."
    return "The dataset is empty: no sealed session of the filter has events."


def _has_terminal_for_question() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _download_dataset_for_command(manifest_url: str, key: str, folder: Path) -> Path:
    """Fetch a hosted dataset and check it there."""
    from recorder.client.progress import byte_progress_bar
    from recorder.loading import open_export

    with byte_progress_bar("fetching") as move:
        open_export(manifest_url, key=key).download(folder, on_progress=move)
    report = _verify_dataset_for_command(str(folder))
    if not report.is_valid:
        typer.echo("\n".join(report.problems), err=True)
        raise typer.Exit(1)
    return folder


def _verify_dataset_for_command(source: str) -> "VerifyReport":
    from recorder.client.progress import byte_progress_bar
    from recorder.exports.verify import verify_manifest
    from recorder.exports.verify.reading_process import ReadingProcess

    with byte_progress_bar("verifying") as move, ReadingProcess() as process:
        return verify_manifest(source, on_progress=move, read_file=process.read)
