# SPDX-License-Identifier: MIT
# set_num_threads, get_num_threads and threads: which number holds where.
# Used by pytest; no call computes anything here.
# The default number is in test_thread_count.py, what threads do with it in test_threads.py.
"""One number for the process, and one for the context within a block."""

import asyncio
import contextvars
import threading

import numpy as np
import pytest

import fastattn


@pytest.fixture
def process_default():
    """The number of threads of the process, which is put back afterwards."""
    before = fastattn.get_num_threads()
    yield before
    fastattn.set_num_threads(before)


def in_thread(body):
    found = []
    thread = threading.Thread(target=lambda: found.append(body()))
    thread.start()
    thread.join()
    return found[0]


def test_set_num_threads_holds_for_the_process(process_default):
    for n in (1, 5, np.int64(7), 1024):
        fastattn.set_num_threads(n)
        assert fastattn.get_num_threads() == n
        assert type(fastattn.get_num_threads()) is int
        assert in_thread(fastattn.get_num_threads) == n


@pytest.mark.parametrize("wrong", [0, -1, 1025, 10**30])
def test_numbers_out_of_range(process_default, wrong):
    """Case 97: refused by both ways to say it, and nothing changes."""
    for say in (fastattn.set_num_threads, fastattn.threads):
        with pytest.raises(ValueError, match="^n: expected"):
            say(wrong)
    assert fastattn.get_num_threads() == process_default


@pytest.mark.parametrize("wrong", [1.0, "2", None, True, [2], np.array([2, 3])])
def test_numbers_of_the_wrong_type(process_default, wrong):
    for say in (fastattn.set_num_threads, fastattn.threads):
        with pytest.raises(TypeError, match="^n: expected"):
            say(wrong)
    assert fastattn.get_num_threads() == process_default


def test_threads_nest_and_end_with_their_block(process_default):
    same = fastattn.threads(3)
    assert fastattn.get_num_threads() == process_default
    with same:
        assert fastattn.get_num_threads() == 3
        with fastattn.threads(9), same, same:
            assert fastattn.get_num_threads() == 3
        fastattn.set_num_threads(5)
        assert fastattn.get_num_threads() == 3
        with pytest.raises(KeyError), fastattn.threads(7):
            raise KeyError
        assert fastattn.get_num_threads() == 3
    assert fastattn.get_num_threads() == 5


def test_threads_hold_in_the_calling_context_only(process_default):
    fastattn.set_num_threads(4)
    with fastattn.threads(6):
        assert in_thread(fastattn.get_num_threads) == 4
        inherited = contextvars.copy_context()
        assert in_thread(lambda: inherited.run(fastattn.get_num_threads)) == 6


def test_asynchronous_tasks_keep_their_number(process_default):
    async def one(n, turns):
        with fastattn.threads(n):
            for _ in range(turns):
                await asyncio.sleep(0)
                assert fastattn.get_num_threads() == n

    async def all_of_them():
        await asyncio.gather(*(one(n, 2 * n) for n in range(2, 9)))

    asyncio.run(all_of_them())
    assert fastattn.get_num_threads() == process_default
