"""``proxyfl verify``: whether a model is what a federation's server signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxyfl.cli.common import examples, out
from proxyfl.cli.deploy_life import require_flower

EXAMPLES = examples(
    "proxyfl verify hospital/run/models/best.safetensors --ca hospital/ca/ca.crt",
    "proxyfl verify model.onnx --ca ca.crt",
)


def verify(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A model; its signature FILE.sig is beside it.", show_default=False
        ),
    ],
    ca: Annotated[
        Path,
        typer.Option("--ca", metavar="ca.crt", help="The federation's CA certificate.", show_default=False),
    ],
    signature: Annotated[
        Path | None, typer.Option(help="The signature file.", show_default="FILE.sig")
    ] = None,
) -> None:
    """Check the server's signature of a model. Exit code 1 if it is missing or does not match.

    Needs the 'flower' extra, as the server does. When a model was signed is the claim of whoever signed it.
    """
    require_flower()
    from proxyfl.core.errors import RunError
    from proxyfl.deploy import model_signing

    try:
        found = model_signing.check(file, ca, signature)
    except RunError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    about = ", ".join(f"{name} {value}" for name, value in found.about.items())
    out().print(
        f"{file}: signed by the server {found.server} at {found.time:%Y-%m-%d %H:%M} UTC; {about}",
        markup=False,
        soft_wrap=True,
    )
    if found.ended:
        out().print("note: the certificate has expired since; it was valid when the model was signed")
