# SPDX-License-Identifier: MIT
# Arrays whose first or last byte touches a page that may not be read or written.
# Used by test_guard_pages.py.
# It catches accesses past an end only; holes inside strided arrays need poison values.
"""Guard pages: an access outside the array is a segmentation fault instead of luck. Linux only."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_PROT_NONE = 0


def _fenced(n_bytes):
    """A writable block of whole pages with a forbidden page on either side: (map, start, size)."""
    size = -(-max(n_bytes, 1) // PAGE) * PAGE
    block = mmap.mmap(-1, size + 2 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for page in (address, address + PAGE + size):
        if _libc.mprotect(page, PAGE, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    return block, PAGE, size


def _place(array, at_end):
    array = np.ascontiguousarray(array)
    block, start, size = _fenced(array.nbytes)
    offset = start + (size - array.nbytes if at_end else 0)
    if array.size == 0:
        return np.frombuffer(block, np.uint8, 0, offset).view(array.dtype).reshape(array.shape)
    raw = np.frombuffer(block, np.uint8, array.nbytes, offset)
    raw[:] = array.reshape(-1).view(np.uint8)
    return raw.view(array.dtype).reshape(array.shape)


def before_fence(array):
    """A copy whose last byte is the last byte before a forbidden page."""
    return _place(array, at_end=True)


def after_fence(array):
    """A copy whose first byte is the first byte after a forbidden page."""
    return _place(array, at_end=False)
