"""What srun, sbatch and salloc say at submit: what is known of this job's start.

Runs in the interpreter that the plugin embeds, in a child of the command and with a deadline; no
answer is as good as any. Nothing is promised that is known not to come.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

import trio

from bootseer import config as settings
from bootseer.core.reference import ENVIRONMENT, SCHEME
from bootseer.core.warm_plan import PlannedImage, WarmPlan
from bootseer.env.snapshot.repository import read_snapshot, resolve
from bootseer.errors import BootseerError, Denied, NotFound, Transient, Unavailable
from bootseer.image.identity import has_image
from bootseer.image.library.catalog import manifest_object
from bootseer.image.library.catalog import resolve as resolve_image
from bootseer.slurm import options
from bootseer.startup.plans import read_plan
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect, connect_images
from bootseer.store.outages import Outages, user_folder
from bootseer.store.wrappers.backoff import Backoff
from bootseer.units import NS_PER_S, format_age, format_size

T = TypeVar("T")

PATH_S = 0.1
"""For the image's file system to answer."""
STORE_S = 0.7
"""For a store to answer all that is asked of it."""
_UNLESS = "if that is so on the nodes too, nothing can be recorded"


class _Connect(Protocol):
    def __call__(
        self, config: settings.Config, user: settings.User, *, backoff: Backoff
    ) -> Store: ...


class _NoAnswer(Unavailable):
    """A store has not answered; the user has been told, now or within the last minute."""


class _Stores:
    """The user's stores, each with a deadline, and left alone for a minute after an outage.

    Attributes:
        told: lines on stores that have not answered just now.
    """

    def __init__(self, config: settings.Config, user: settings.User) -> None:
        self.told: dict[str, str] = {}
        self._config = config
        self._user = user
        self._outages: Outages | None = None
        with suppress(OSError, BootseerError):
            self._outages = Outages(user_folder(user.uid))

    async def ask(self, connect: _Connect, call: Callable[[Store], Awaitable[T]]) -> T:
        """Return what `call` finds in the store that `connect` opens.

        Raises:
            _NoAnswer: the store does not answer.
            BootseerError: it answers that.
        """
        store = connect(self._config, self._user, backoff=Backoff(attempts=1))
        if self._outages is not None and self._outages.recent(store.url):
            raise _NoAnswer(store.url)
        why, within = f"no answer within {STORE_S:g} s", f" within {STORE_S:g} s"
        with trio.move_on_after(STORE_S):
            try:
                return await call(store)
            except Transient as error:
                why, within = str(error), ""
        if self._outages is not None:
            self._outages.note(store.url, why)
        self.told[store.url] = (
            f"store {store.url} does not answer{within} here: unless the nodes reach it, this "
            "start is neither warm nor recorded; ask its administrators, or run `bootseer doctor`"
        )
        raise _NoAnswer(why)


class _Request:
    """What is known of one job's request.

    Attributes:
        plan: of its key, None if there is none or the store does not answer.
        image: path or URI of the image, "" if none is known.
    """

    def __init__(
        self, config: settings.Config, user: settings.User, key: str, asked: options.JobOptions
    ) -> None:
        self.plan: WarmPlan | None = None
        self.image = asked.image or (asked.imported if config.image.importer else "")
        self._config = config
        self._user = user
        self._key = key
        self._asked = asked
        self._is_named = bool(self.image)
        self._is_imported = self._is_named and not asked.image
        self._stores = _Stores(config, user)

    async def lines(self) -> list[str]:
        """Return a line for each thing that is known."""
        try:
            self.plan = await self._stores.ask(
                connect, lambda store: read_plan(store, self._user.name, self._key)
            )
        except BootseerError as error:
            lines = [] if isinstance(error, _NoAnswer) else [f"nothing known: {error}"]
            if self.image.startswith("/"):
                lines.append(await _check_path(self.image))
        else:
            planned = self._planned_image()
            self.image = self.image or (planned.path if planned else "")
            problem, note = await self._check_image()
            lines = [self._known(planned, problem), note]
            with suppress(_NoAnswer):
                lines += await self._stores.ask(connect, self._environments)
        return [*filter(None, lines), *self._stores.told.values()]

    def _planned_image(self) -> PlannedImage | None:
        """Return what the plan knows of this start's image."""
        images = self.plan.images if self.plan else ()
        own = [image for image in images if not image.path.startswith(ENVIRONMENT)]
        return next((i for i in own if self.image in ("", i.path)), None)

    async def _check_image(self) -> tuple[str, str]:
        """Return why nothing can be recorded of the image, "" if it can; and a remark or ""."""
        if self.image.startswith("/"):
            return await _check_path(self.image), ""
        if not self.image:
            return "", ""
        try:
            digest = await self._stores.ask(connect_images, self._find_image)
        except _NoAnswer:
            return "", ""
        except BootseerError as error:
            if isinstance(error, NotFound) and self._is_imported:
                return "", ""  # Enroot imports it, and it is stored then
            if isinstance(error, Denied):
                return f"you may not read {self.image} in its store; nothing can be recorded", ""
            return f"{error}; nothing can be recorded", ""
        return "", self._retagged(digest)

    async def _find_image(self, store: Store) -> str:
        """Return the digest of the served image."""
        digest = await resolve_image(store, self.image)
        try:
            await store.stat(manifest_object(digest))
        except NotFound as error:
            raise NotFound(f"there is no image {digest} in {store.url}") from error
        return digest

    def _retagged(self, digest: str) -> str:
        """Say if the name of the image leads to another one than in the last run."""
        if self.plan is None or not self.plan.retagged(self.image, digest):
            return ""
        will = "the job gets that one"
        if self._config.image.pin and not self._asked.record_only:
            will = f"it is refused: give --bootseer-image={SCHEME}{digest}, or --bootseer=record"
        return f"{self.image} is another image than in the last run, and {will}"

    def _known(self, image: PlannedImage | None, problem: str) -> str:
        """Say what is known of the start, and what comes of it.

        Args:
            image: of the plan.
            problem: why nothing can be recorded; "" if it can.
        """
        known = will = ""
        if self._asked.record_only:
            will = "this start is recorded, as if it were the first"
        elif image is not None and image.hot_bytes:
            size = f"{format_size(image.hot_bytes)} of {format_size(image.size_bytes)}"
            whose = "" if self._is_named else ", the image of the last start"
            known = f"hot set known: {size} ({self.image}{whose})"
        elif image is not None:
            known, will = f"{self.image}: no hot set", "this start is recorded"
        elif self.plan is not None:
            which = f"none with {self.image}" if self.image else "without an image"
            known, will = f"{len(self.plan.runs)} earlier starts, {which}", "this one is recorded"
        else:
            known = "first start under this key"
            will = "it is recorded, unless the image is known already"
        if not self.image:
            needs_none = self._asked.checkpoint or self._asked.environment
            will = "" if needs_none else "give --bootseer-image=PATH|URI to have it recorded"
        if problem:
            return "; ".join(filter(None, [known, problem]))
        return ": ".join(filter(None, [known, will]))

    async def _environments(self, store: Store) -> list[str]:
        """Say what is known of the environment that the job names, or that its last run used."""
        asked, plan = self._asked, self.plan
        references = [asked.environment] if asked.environment else []
        if plan is not None and not asked.record_only:
            paths = [image.path for image in plan.images if image.path.startswith(ENVIRONMENT)]
            references += [path.removeprefix(ENVIRONMENT) for path in paths]
        lines = {}
        for reference in references:
            try:
                key = await resolve(store, reference)
                snapshot = await read_snapshot(store, key)
            except Transient:
                raise
            except BootseerError as error:
                lines[reference] = f"environment {reference}: {error}"
                continue
            age = format_age((time.time_ns() - snapshot.captured_ns) / NS_PER_S)
            will = "will be mounted" if snapshot.is_whole else "will be unpacked"
            if reference != asked.environment:  # `env run` finds out what is sooner
                will = "will be ready when `bootseer env run` asks for it"
            size = format_size(snapshot.content_bytes)
            text = f"environment snapshot {key[:12]}: {size}, captured {age} ago, {will}"
            lines.setdefault(key, text)
        return list(lines.values())


def advise(values: Mapping[str, str]) -> list[str]:
    """Return the lines to print, none if all that there is to say was said a moment ago.

    Args:
        values: what the plugin sends to the node, BOOTSEER_KEY and so on, after its own checks.
    """
    asked = options.parse({f"SPANK_{name}": value for name, value in values.items()})
    if asked is None:
        return []
    key = asked.key or options.key_of_name(values.get("BOOTSEER_JOB_NAME", ""))
    entry = pwd.getpwuid(os.getuid())
    user = settings.User(entry.pw_name, entry.pw_uid, entry.pw_dir)
    try:
        lines = trio.run(_Request(settings.load(), user, key, asked).lines)
    except BootseerError as error:
        lines = [f"nothing known: {error}"]
    lines += asked.ignored
    return [f"key {key}: {line}" if not i else line for i, line in enumerate(lines)]


async def _check_path(path: str) -> str:
    """Return what is wrong with an image file on this machine, "" for nothing."""
    with trio.move_on_after(PATH_S):
        try:
            is_image = await trio.to_thread.run_sync(has_image, path, abandon_on_cancel=True)
        except NotFound:
            return f"{path} does not exist here; {_UNLESS}"
        except Denied:
            return f"{path} is not readable for you here; {_UNLESS}"
        except BootseerError as error:
            return f"{path} is no image here: {error}; {_UNLESS}"
        return "" if is_image else f"{path} is neither a squashfs nor a SIF: is it the right file?"
    return f"{path} is on a file system that does not answer within {PATH_S:g} s here"
