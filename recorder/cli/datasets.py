"""`recorder export` and `recorder verify`: datasets out, and checked. Contract §9."""

from dataclasses import asdict
from typing import Annotated

import typer

from recorder.cli.options import DEFAULT_URL, AsJson, Key, Url, print_json


def export(
    workflow: Annotated[list[str], typer.Argument(help="One or more workflows.")],
    key: Key,
    url: Url = DEFAULT_URL,
    format: Annotated[str, typer.Option(help="parquet; the other formats come later.")] = "parquet",
    to: Annotated[
        str, typer.Option(help="`signed_url` (the service hosts it), or a folder on its machine.")
    ] = "signed_url",
    tag: Annotated[str | None, typer.Option(help="Name of this version of the dataset.")] = None,
    where: Annotated[list[str], typer.Option(help="A filter, such as outcome=success.")] = [],  # noqa: B006
    watch: Annotated[bool, typer.Option(help="Wait until it is done, with a progress bar.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask for a dataset; with --watch, wait for it."""
    from recorder.client import Client
    from recorder.client.progress import watch_export

    filters = dict(pair.split("=", 1) for pair in where if "=" in pair)
    if len(filters) != len(where):
        raise typer.BadParameter("takes NAME=VALUE, each name once", param_hint="--where")
    destination = {"kind": "signed_url"} if to == "signed_url" else {"kind": "local", "path": to}
    with Client(url, key) as client:
        made = client.create_export(
            workflow, format=format, filter=filters or None, destination=destination, tag=tag
        )
        answer = watch_export(client, made["id"]) if watch else made
    if as_json:
        print_json(answer)
        return
    typer.echo(answer["manifest_url"] or answer["id"])


def verify(
    manifest: Annotated[str, typer.Argument(help="Path of a manifest.json, or its folder.")],
    as_json: AsJson = False,
) -> None:
    """Check a dataset against its manifest, offline: sizes, rows, hashes, row set."""
    from recorder.exports.verify import verify_manifest

    report = verify_manifest(manifest)
    if as_json:
        print_json({**asdict(report), "is_valid": report.is_valid})
    else:
        counts = (
            f"{report.shards} shards, {report.rows} rows, {report.frames} frames, {report.size_bytes} bytes"
        )
        typer.echo("\n".join(report.problems) or f"{report.export_id}: {counts}, all as the manifest says.")
    raise typer.Exit(0 if report.is_valid else 1)
