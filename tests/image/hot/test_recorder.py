"""What the recorder makes of what it is told of pages; `test_warming.py` has a real page cache."""

import errno
import mmap
import os
from types import SimpleNamespace

import pytest

from bootseer._io import lib
from bootseer.core.ranges import ByteRange
from bootseer.errors import Unavailable
from bootseer.image.hot import recorder as record
from bootseer.image.hot import residency
from bootseer.image.hot.recorder import ResidencyRecorder
from bootseer.image.hot.residency import KernelResidency
from bootseer.image.hot.trace import Touch

PAGE = mmap.PAGESIZE
PAGES = 100
AHEAD, USED, GONE = 0, 1, 2


class Told:
    """The pages of a file, as a test says they are.

    Attributes:
        news: what has become resident, for each time that it is asked for.
        uses: how each page is used; None if that cannot be told.
        asked: how many were asked for, each time.
    """

    size_bytes = PAGES * PAGE

    def __init__(self, *news, uses=None):
        self.news = list(news)
        self.uses = uses
        self.asked = []
        self.is_closed = False
        self.on_active = lambda: None

    def newly_resident(self, most):
        self.asked.append(most)
        found = self.news.pop(0) if self.news else []
        if isinstance(found, Exception):
            raise found
        return [(start * PAGE, stop * PAGE) for start, stop in found]

    def active(self, start, stop):
        self.on_active()
        return self.uses and bytes(self.uses[start // PAGE : -(-stop // PAGE)])

    def close(self):
        self.is_closed = True


@pytest.mark.parametrize(("pages", "is_cold"), [(0, True), (2, True), (3, False)])
def test_an_image_of_which_hardly_anything_was_in_memory_was_cold(pages, is_cold):
    recorder = ResidencyRecorder(Told([(50, 50 + pages)] if pages else []))
    assert recorder.found_cold is is_cold
    assert recorder.size_bytes == PAGES * PAGE


def test_what_every_start_reads_does_not_make_an_image_warm():
    recorder = ResidencyRecorder(Told([(0, 10)]), [ByteRange(0, 8 * PAGE)])
    assert recorder.found_cold
    assert recorder.resident_before == [(8 * PAGE, 10 * PAGE)]


def test_of_more_than_a_trace_holds_the_first_is_kept_and_all_is_counted(monkeypatch):
    monkeypatch.setattr(record, "MAX_TOUCHES", 3)
    recorder = ResidencyRecorder(Told([], [(0, 1), (2, 3)], [(4, 5), (6, 8)], [(9, 10)]))
    assert [recorder.sample(ms) for ms in (1, 2, 3)] == [2 * PAGE, 3 * PAGE, PAGE]
    assert [touch.first_ms for touch in recorder.touches] == [1, 1, 2]
    assert recorder.touches[-1] == (4 * PAGE, 5 * PAGE, 2)


def test_pages_are_asked_for_until_there_are_no_more_or_too_many(monkeypatch):
    monkeypatch.setattr(record, "_SAMPLE_RANGES", 2)
    monkeypatch.setattr(record, "MAX_TOUCHES", 4)
    pages = Told([(0, 1)])
    recorder = ResidencyRecorder(pages)
    assert pages.asked == [2]
    pages.news = [[(2, 3), (4, 5)], [(6, 7)], [(8, 9), (10, 11)]]
    assert recorder.sample(1) == 3 * PAGE
    assert pages.asked == [2] * 3
    pages.news += [[(12, 13), (14, 15)], [(16, 17), (18, 19)], [(20, 21)]]
    assert recorder.sample(2) == 4 * PAGE
    assert pages.asked == [2] * 5, "four ranges are all that can be kept"


def test_what_cannot_be_looked_at_is_closed():
    pages = Told(Unavailable("no"))
    with pytest.raises(Unavailable):
        ResidencyRecorder(pages)
    assert pages.is_closed


def test_a_recorder_that_is_closed_looks_no_more():
    pages = Told([], [(0, 1)])
    recorder = ResidencyRecorder(pages)
    recorder.sample(1)
    assert not pages.is_closed
    recorder.close()
    assert pages.is_closed and recorder.touches == [(0, PAGE, 1)]


def settled(pages, *touches):
    recorder = ResidencyRecorder(pages)
    recorder.touches = [Touch(*touch) for touch in touches]
    recorder.settle()
    return recorder.touches


def test_what_was_read_ahead_only_is_cut_off_where_pages_begin_and_end():
    uses = [USED] * PAGES
    uses[0] = uses[5] = uses[6] = uses[9] = AHEAD
    uses[7] = GONE
    touches = (100, 2 * PAGE + 5, 7), (4 * PAGE + 1, 9 * PAGE + 10, 8), (20 * PAGE, 21 * PAGE, 9)
    assert settled(Told(uses=uses), *touches) == [
        (PAGE, 2 * PAGE + 5, 7),
        (4 * PAGE + 1, 5 * PAGE, 8),
        (7 * PAGE, 8 * PAGE, 8),
        (8 * PAGE, 9 * PAGE, 8),
        (20 * PAGE, 21 * PAGE, 9),
    ]


@pytest.mark.parametrize(("used", "kept"), [(25, 25), (24, PAGES), (0, PAGES), (100, 100)])
def test_where_less_than_a_quarter_is_in_use_nothing_is_forgotten(used, kept):
    uses = [USED] * used + [AHEAD] * (PAGES - used)
    assert settled(Told(uses=uses), (0, PAGES * PAGE, 1)) == [(0, kept * PAGE, 1)]


def test_how_much_is_in_use_is_counted_in_bytes_of_all_touches():
    """One page of three is in use, and that is less than a quarter of the bytes."""
    uses = [USED, AHEAD, AHEAD]
    small = (0, PAGE // 2, 1), (PAGE, 3 * PAGE, 2)
    assert settled(Told(uses=uses), *small) == list(small)
    assert settled(Told(uses=uses), (0, PAGE, 1), small[1]) == [(0, PAGE, 1)]
    uses += [AHEAD] * 2
    assert settled(Told(uses=uses), (0, PAGE, 1), (PAGE, 4 * PAGE, 2)) == [(0, PAGE, 1)]
    more = (0, PAGE, 1), (PAGE, 4 * PAGE + 1, 2)
    assert settled(Told(uses=uses), *more) == list(more)


def test_where_it_cannot_be_told_nothing_is_forgotten():
    assert settled(Told(uses=None), (0, PAGE, 1)) == [(0, PAGE, 1)]
    assert settled(Told(uses=[USED])) == []


@pytest.mark.parametrize("at", ["before", "first", "last"])
def test_who_is_told_to_stop_forgets_nothing_more(at):
    uses = [USED] * 6 + [AHEAD] * 6
    looks = 0

    def look():
        nonlocal looks
        looks += 1
        if (at, looks) in (("first", 1), ("last", 3)):
            recorder.stop_settling()

    pages = Told(uses=uses)
    pages.on_active = look
    recorder = ResidencyRecorder(pages)
    recorder.touches = [Touch(start * PAGE, (start + 4) * PAGE, 1) for start in (0, 4, 8)]
    before = list(recorder.touches)
    if at == "before":
        recorder.stop_settling()
    recorder.settle()
    assert recorder.touches == before
    assert looks == {"before": 0, "first": 1, "last": 3}[at]


class Kernel:
    """The system's calls, but for some whose answers a test gives."""

    def __init__(self, **answers):
        self._answers = answers

    def __getattr__(self, name):
        answer = self._answers.get(name)
        return (lambda *arguments: answer) if name in self._answers else getattr(lib, name)


@pytest.fixture
def image(tmp_path):
    (tmp_path / "image").write_bytes(bytes(3 * PAGE + 5))
    return tmp_path / "image"


def watched(path):
    """Open a file's residency, and close it."""
    pages = KernelResidency(os.open(path, os.O_RDONLY))
    pages.close()
    pages.close()  # as good as once
    return pages


def test_a_file_is_watched_up_to_its_limit(image, monkeypatch):
    size_bytes = image.stat().st_size
    monkeypatch.setattr(residency, "MAX_FILE_BYTES", size_bytes)
    assert watched(image).size_bytes == size_bytes
    monkeypatch.setattr(residency, "MAX_FILE_BYTES", size_bytes - 1)
    with pytest.raises(Unavailable, match=f"{size_bytes} bytes are more than an image has"):
        watched(image)


@pytest.mark.parametrize("has_cachestat", [False, True])
def test_what_a_kernel_without_cachestat_can_watch_is_less(image, monkeypatch, has_cachestat):
    monkeypatch.setattr(residency, "lib", Kernel(bs_has_cachestat=has_cachestat))
    size_bytes = image.stat().st_size
    monkeypatch.setattr(residency, "MAX_MINCORE_BYTES", size_bytes)
    watched(image)
    monkeypatch.setattr(residency, "MAX_MINCORE_BYTES", size_bytes - 1)
    if has_cachestat:
        watched(image)
    else:
        with pytest.raises(Unavailable, match="no cachestat"):
            watched(image)


def test_an_empty_file_cannot_be_watched(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(Unavailable, match=r"cannot watch the image: Invalid argument \(EINVAL\)"):
        watched(tmp_path / "empty")


def test_what_a_server_does_not_describe_cannot_be_watched(image, monkeypatch):
    def fstat(fd):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    fd = os.open(image, os.O_RDONLY)
    monkeypatch.setattr(residency, "os", SimpleNamespace(fstat=fstat, close=os.close))
    with pytest.raises(Unavailable, match="cannot look at the image: Stale file handle"):
        KernelResidency(fd)


def test_a_sample_that_fails_is_told(image, monkeypatch):
    pages = KernelResidency(os.open(image, os.O_RDONLY))
    monkeypatch.setattr(residency, "lib", Kernel(bs_residency_sample=-errno.EIO))
    with pytest.raises(Unavailable, match=r"sample the image's residency: .* \(EIO\)"):
        pages.newly_resident(10)
    monkeypatch.undo()
    pages.close()


def test_a_sample_has_only_what_is_new(image):
    with image.open("rb") as file:
        file.read()
    pages = KernelResidency(os.open(image, os.O_RDONLY))
    assert pages.newly_resident(1) == [(0, 3 * PAGE + 5)]
    assert pages.newly_resident(1) == []
    pages.close()


@pytest.mark.parametrize(
    ("start", "stop", "count"),
    [(0, PAGE, 1), (0, PAGE + 1, 2), (PAGE - 1, 3 * PAGE, 3), (2 * PAGE + 1, 3 * PAGE + 5, 2)],
)
def test_of_each_page_of_a_range_it_is_told_how_it_is_used(image, monkeypatch, start, stop, count):
    monkeypatch.setattr(residency, "lib", Kernel(bs_residency_active=0))
    pages = KernelResidency(os.open(image, os.O_RDONLY))
    assert pages.active(start, stop) == bytes(count)
    monkeypatch.setattr(residency, "lib", Kernel(bs_residency_active=-errno.EPERM))
    assert pages.active(start, stop) is None
    monkeypatch.undo()
    assert pages.active(0, 0) is None
    pages.close()
