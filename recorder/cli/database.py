"""`recorder db`: the slots of sealing. Contract §9."""

from typing import Annotated

import typer

from recorder.cli.options import AsJson, DataDir, print_json

app = typer.Typer(no_args_is_help=True, help="The database of a deployment.")


@app.command("reslot")
def reslot(
    slots: Annotated[int, typer.Argument(min=1, max=1024, help="New number of slots.")],
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Divide the workflows of each workspace into another number of sealing slots; stop the service first."""
    from recorder.cli.options import opened
    from recorder.sealing.lanes import change_slots

    with opened(data, is_reslotting=True) as runtime, runtime.database.transaction(write=True) as db:
        before = change_slots(db, slots)
    if as_json:
        print_json({"slots": slots, "before": before})
        return
    typer.echo(
        f"{slots} slots instead of {before}. Set RECORDER_SEAL_SLOTS to {slots} where it is set.", err=True
    )
