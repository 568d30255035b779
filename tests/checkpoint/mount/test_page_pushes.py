"""Pushes into the page cache: all but the marks, and nothing while a file is truncated."""

import errno

import pytest
import trio
import trio.testing

from bootseer.checkpoint.mount.page_pushes import PagePushes
from bootseer.core.access_log import MARK_BYTES

PAGE = 4096
INODE = 7


class Kernel:
    """Takes what is pushed, when it may."""

    def __init__(self, error=None):
        self.error = error
        self.pushed = []
        self.may_answer = trio.Event()

    async def store(self, inode, offset, data):
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        self.pushed.append((inode, offset, bytes(data)))


@pytest.fixture
def kernel():
    kernel = Kernel()
    kernel.may_answer.set()
    return kernel


@pytest.mark.parametrize(
    ("offset", "size_bytes", "start"),
    [
        (0, 3 * PAGE, PAGE),
        (MARK_BYTES, 3 * PAGE, PAGE),
        (0, PAGE, 0),
        (3 * PAGE, 3 * PAGE, 0),
    ],
    ids=["first", "later", "only a page", "between"],
)
async def test_a_mark_is_held_back_and_the_rest_pushed(kernel, offset, size_bytes, start):
    data = bytes(range(256)) * (size_bytes // 256)
    pushes = PagePushes()
    await pushes.push(kernel, INODE, offset, data)
    assert kernel.pushed == [(INODE, offset + start, data[start:])]
    assert pushes.pop_mark(offset, 10) == (offset, data[:PAGE] if start else None)
    assert pushes.pop_mark(offset, 10) == (offset, None), "the kernel has it now"


async def test_a_mark_is_looked_for_in_the_last_page_of_a_request(kernel):
    pushes = PagePushes()
    await pushes.push(kernel, INODE, MARK_BYTES, b"x" * (2 * PAGE))
    assert pushes.pop_mark(MARK_BYTES, 2 * PAGE) == (MARK_BYTES + PAGE, None)
    assert pushes.pop_mark(MARK_BYTES - PAGE, PAGE + 1) == (MARK_BYTES, b"x" * PAGE)


async def test_marks_of_another_version_are_forgotten(kernel):
    pushes = PagePushes()
    await pushes.push(kernel, INODE, 0, b"x" * (2 * PAGE))
    pushes.forget_marks()
    assert pushes.pop_mark(0, PAGE) == (0, None)


async def test_a_push_that_the_kernel_refuses_is_no_error():
    kernel = Kernel(OSError(errno.ENOENT, "forgotten"))
    kernel.may_answer.set()
    pushes = PagePushes()
    await pushes.push(kernel, INODE, 0, b"x")
    assert kernel.pushed == []
    await pushes.settle()


async def test_a_truncation_waits_for_pushes_under_way(nursery):
    kernel = Kernel()
    pushes = PagePushes()
    nursery.start_soon(pushes.push, kernel, INODE, 0, b"x")
    await trio.testing.wait_all_tasks_blocked()
    steps = []

    async def truncate():
        async with pushes.truncating():
            steps.append(kernel.pushed[:])

    nursery.start_soon(truncate)
    await trio.testing.wait_all_tasks_blocked()
    assert steps == [] and pushes.is_truncating
    kernel.may_answer.set()
    await trio.testing.wait_all_tasks_blocked()
    assert steps == [[(INODE, 0, b"x")]] and not pushes.is_truncating
