"""What commands about images have in common: arguments, options, the store that they use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from bootseer.image.library.upload import UploadProgress
    from bootseer.store.api.base import Store

T = TypeVar("T")

SHORT_CHARS = 12
"""Of a digest, where a person reads it."""


def complete_image(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the names of images in a store on this machine."""
    from bootseer.cli.terminal import runner
    from bootseer.errors import BootseerError
    from bootseer.image.library.catalog import list_names

    try:
        names = runner.run(lambda: list_names(image_store()))
    except BootseerError:
        return []
    return [CompletionItem(n.name) for n in names if n.name.startswith(typed)]


image_argument = click.argument("image", shell_complete=complete_image)


def on_images(
    work: Callable[[Store], Awaitable[T]],
    *,
    counted: UploadProgress | None = None,
    bar: str = "",
    after: str = "nothing was changed",
) -> T:
    """Run ``work`` on the store that has the caller's images."""
    from bootseer.cli.terminal import runner

    return runner.run(lambda: work(image_store()), counted=counted, bar=bar, after=after)


def image_store() -> Store:
    """Connect to the store that has the caller's images."""
    from bootseer import config as settings
    from bootseer.cli.terminal import runner
    from bootseer.store.from_settings import connect_images

    return connect_images(settings.load(), runner.caller())
