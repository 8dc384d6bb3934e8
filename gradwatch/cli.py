"""The command line: ``gradwatch replay``, ``gradwatch report`` and ``gradwatch workspace``.

Annotations are evaluated here, not kept as text: typer is imported inside a function, and reads
them there.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradwatch.non_finite.bundle_replay import BundleError, find_factory, replay_bundle
from gradwatch.report.command import run_report
from gradwatch.sinks.workspace import save_workspace, write_workspace

if TYPE_CHECKING:
    import typer

SAME, ANOTHER, BAD_USE = 0, 1, 2
NO_TYPER = "the command line needs typer: pip install 'gradwatch[cli]'"


def main() -> None:
    """Run the command line; the exit code is 0, 1 or 2."""
    try:
        app = make_app()
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.stderr.write(f"gradwatch: {NO_TYPER}\n")
        sys.exit(BAD_USE)
    app()


def make_app() -> "typer.Typer":
    """Give the commands as a typer application.

    Raises:
        ModuleNotFoundError: If typer is not installed.
    """
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

    @app.callback()
    def gradwatch() -> None:
        """Look into what gradwatch kept."""

    for add in (_add_replay, _add_report, _add_workspace):
        add(app)
    return app


def _add_replay(app: "typer.Typer") -> None:
    import typer

    @app.command()
    def replay(
        bundle: Annotated[Path, typer.Argument(help="File that was kept: step-N.pt")],
        model: Annotated[
            str, typer.Option(help="What makes the model: package.module:factory, no arguments")
        ],
    ) -> None:
        """Run a failing micro-batch again on the CPU and name the layer.

        Exit code 0: the same fault; 1: not reproduced; 2: bad use.
        """
        raise typer.Exit(run_replay(bundle, model))


def _add_report(app: "typer.Typer") -> None:
    import typer

    @app.command()
    def report(
        run_dir: Annotated[
            Path, typer.Argument(help="Folder the run logged to, or any above it, or its record")
        ] = Path(),
        output: Annotated[
            Path | None,
            typer.Option(help="File to write, or a folder for it (default: beside the record)"),
        ] = None,
        run: Annotated[
            int | None, typer.Option(help="Which of the record's runs, from 1 (default: the last)")
        ] = None,
    ) -> None:
        """Write one HTML file that tells a run, also one that is going on or crashed.

        Exit code 0: written, its path is printed; 2: bad use.
        """
        raise typer.Exit(run_report(run_dir, output, run))


def _add_workspace(app: "typer.Typer") -> None:
    import typer

    @app.command()
    def workspace(
        project: Annotated[str, typer.Argument(metavar="ENTITY/PROJECT", help="Where it goes")],
        write: Annotated[
            Path | None, typer.Option(help="Write its spec to this file instead; needs no login")
        ] = None,
        *,
        renew: Annotated[
            bool, typer.Option("--renew", help="Write over the one that is there")
        ] = False,
    ) -> None:
        """Save a ready-made W&B page: the pictures on top, one panel a family below.

        Exit code 0: it is there; 2: bad use, or W&B could not be reached.
        """
        raise typer.Exit(run_workspace(project, write, renew=renew))


def run_replay(bundle: Path, model: str) -> int:
    """Replay a bundle and print what was told then and what is found now.

    Args:
        bundle: The file.
        model: ``package.module:factory``.

    Returns:
        0 where the same fault is found, 1 where it is not, 2 where it could not be tried.
    """
    try:
        again = replay_bundle(bundle, find_factory(model))
    except BundleError as error:
        sys.stderr.write(f"gradwatch: {error}\n")
        return BAD_USE
    except Exception as error:  # noqa: BLE001 - left to Python it would exit with "not reproduced"
        sys.stderr.write(f"gradwatch: {bundle} cannot be replayed: {error!r}\n")
        return BAD_USE
    sys.stdout.write("\n".join([*again.lines(), ""]))
    return (SAME if again.same else ANOTHER) if again.ran else BAD_USE


def run_workspace(project: str, write: Path | None, *, renew: bool = False) -> int:
    """Save the W&B page or write its spec, and print where it is.

    Args:
        project: ``ENTITY/PROJECT``.
        write: File for the spec; None saves to W&B.
        renew: Write over the page that is there.

    Returns:
        0 where it is there, 2 where it is not.
    """
    entity, slash, name = project.partition("/")
    if not (entity and slash and name) or "/" in name:
        sys.stderr.write(
            f"gradwatch: expected ENTITY/PROJECT, as in W&B's address; got {project!r}\n"
        )
        return BAD_USE
    try:
        if write is None:
            told = save_workspace(entity, name, renew=renew)
        else:
            write_workspace(entity, name, write)
            told = str(write)
    except Exception as error:  # noqa: BLE001 - no extra, no login, no network, no such project
        sys.stderr.write(f"gradwatch: no workspace for {project}: {error}\n")
        return BAD_USE
    sys.stdout.write(f"{told}\n")
    return SAME


if __name__ == "__main__":
    main()
