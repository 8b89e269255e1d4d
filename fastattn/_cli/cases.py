# SPDX-License-Identifier: MIT
"""Random calls for the self-test: sizes around tile edges, every option, unusual memory layouts.

Used by `selftest`.  It runs nothing and knows no expected value.

Case ``n`` of seed ``s`` is a function of ``(s, n)`` and of the tile edges alone, so a failure can
be drawn again without the cases before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["DTYPES", "Case", "draw", "tile_edges"]

# Sizes around the lane counts of every vector width, besides the tile edges of the planner.
EDGES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
DTYPES = ("float32", "float64", "float16", "bfloat16")  # the first one more often
CHANNELS = (1, 3, 4, 7, 8, 9, 15, 16, 17, 24, 32, 33, 40, 64, 65, 80, 128, 129)
MAX_PRODUCTS = 3_000_000  # rows x keys x channels of a case: some milliseconds in float64


@dataclass
class Case:
    """One call: `arrays` and `options` are its arguments."""

    number: int
    dtype: str
    arrays: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    n_threads: int = 1
    memory: list = field(default_factory=list)  # what is unusual about the arrays

    def __str__(self) -> str:
        shapes = " ".join(f"{name}{tuple(a.shape)}" for name, a in self.arrays.items())
        options = " ".join(f"{name}={_brief(v)}" for name, v in self.options.items())
        return " ".join([self.dtype, shapes, options, *self.memory, f"threads={self.n_threads}"])


def _brief(option):
    """A short form of an option's value: arrays by dtype and shape."""
    if isinstance(option, np.ndarray):
        return f"{option.dtype}{tuple(option.shape)}"
    return repr(option).replace(" ", "")


def tile_edges(plan) -> tuple:
    """Sizes at which the kernels change their path.

    Parameters
    ----------
    plan : callable or None
        The planner of the compiled extension, where there is one.
    """
    if plan is None:
        return ()
    sizes = set()
    for n_queries in (1, 512):
        found = plan(1, 4, 2, n_queries, 2048, 64, 64)
        sizes |= {found[name] for name in ("row_block", "key_tile", "rows_per_task", "key_chunk")}
    return tuple(sorted({n + d for n in sizes for d in (-1, 0, 1) if 1 < n <= 4096}))


def draw(seed: int, number: int, edges: tuple = ()) -> Case:
    """Draw case `number` of `seed`; `edges` are sizes that matter besides the common ones."""
    rng = np.random.default_rng([seed, number])
    case = Case(number, _draw_dtype(rng), n_threads=int(rng.integers(1, 5)))
    lead = [(), (1,), (2,), (3,), (2, 2)][rng.integers(5)]
    n_kv_heads, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3, 8]))
    heads, channels = n_kv_heads * group, int(rng.choice(CHANNELS))
    v_channels = channels if rng.random() < 0.7 else int(rng.choice(CHANNELS))
    n_queries, n_keys = _draw_lengths(rng, edges, np.prod(lead, dtype=int) * heads * channels)

    options = case.options
    layout = "bshd" if rng.random() < 0.3 else "bhsd"
    if layout == "bshd":
        options["layout"] = layout
    sharp = rng.choice([0.3, 1.0, 1.0, 8.0])  # large scores make the running maximum move
    shapes = {
        "query": (*lead, heads, n_queries, channels),
        "key": (*lead, n_kv_heads, n_keys, channels),
        "value": (*lead, n_kv_heads, n_keys, v_channels),
    }
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    arrays["query"] *= sharp
    _draw_options(rng, options, lead, heads, n_queries, n_keys)
    _poison(arrays, options.get("kv_lengths"), lead)
    is_flat = not lead and heads == 1 and rng.random() < 0.5  # (sequence, channels) arrays
    if is_flat:
        arrays = {name: array[0] for name, array in arrays.items()}
        for name in {"attn_mask", "bias"} & options.keys():
            options[name] = options[name].reshape(options[name].shape[-2:])
    for name, array in arrays.items():
        if lead and name != "query" and "kv_lengths" not in options and rng.random() < 0.1:
            array = array[:1]  # broadcasts against the others
        array = array.swapaxes(-3, -2) if layout == "bshd" and not is_flat else array
        array, how = _unusual_memory(rng, array.astype(_dtype(case.dtype)))
        case.memory += [f"{name}:{how}"] * (how != "compact")
        case.arrays[name] = array
    return case


def _draw_dtype(rng) -> str:
    name = rng.choice([DTYPES[0]] * 6 + list(DTYPES))
    try:
        _dtype(name)
    except ImportError:
        return "float32"
    return str(name)


def _dtype(name):
    """The NumPy dtype of that name; bfloat16 needs ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(str(name))


def _draw_lengths(rng, edges, weight):
    """Numbers of queries and keys, so that the case stays small; now and then one of them is 0."""
    pool = np.array(EDGES + edges)
    n_keys = int(rng.choice(pool[pool * weight <= MAX_PRODUCTS]))
    pool = pool[pool * weight * n_keys <= MAX_PRODUCTS]
    n_queries = 1 if rng.random() < 0.25 or not pool.size else int(rng.choice(pool))
    empty = rng.random()
    return (0, n_keys) if empty < 0.01 else (n_queries, 0 if empty < 0.02 else n_keys)


def _draw_options(rng, options, lead, heads, n_queries, n_keys) -> None:
    """Add some of the options of the call."""

    def some(chance=0.2):
        return rng.random() < chance

    def mask_shape():
        full = (*lead, heads, n_queries, n_keys)
        return [full, full[-2:], (1, n_keys), (heads, 1, n_keys), (*lead, 1, *full[-2:])][
            rng.integers(5)
        ]

    if some(0.4):
        options["is_causal"] = True
    if some():
        options["kv_lengths"] = rng.integers(0, n_keys + 1, lead, dtype=np.int32)
        options["kv_lengths"] = options["kv_lengths"] if lead else int(options["kv_lengths"])
    if some(0.3):
        choices = ["lower_right", int(rng.integers(-3, n_keys + 4))]
        choices += [rng.integers(-3, n_keys + 4, lead)] if lead else []
        options["q_offset"] = choices[rng.integers(len(choices))]
    if some():
        side = [None, -1, 0, int(rng.integers(0, n_keys + 2)), int(rng.integers(0, n_keys + 2))]
        pair = tuple(side[i] for i in rng.integers(0, 5, 2))
        options["window"] = pair if some(0.7) else side[-1]
    if some():
        mask = rng.random(mask_shape()) < 0.7
        if some(0.5):
            float_type = rng.choice(["float16", "float32", "float64"])
            mask = np.where(mask, rng.standard_normal(mask.shape), -np.inf).astype(float_type)
        options["attn_mask"] = mask
    if some():
        options["bias"] = rng.standard_normal(mask_shape()).astype("float32")
    if some():
        options["softcap"] = float(rng.choice([0.5, 5.0, 30.0]))
    if some():
        shape = (heads,) if some(0.7) else (*lead, heads)
        options["alibi_slopes"] = rng.random(shape).astype("float32")
    if some():
        options["sinks"] = np.where(rng.random(heads) < 0.8, rng.standard_normal(heads), -np.inf)
    if some():
        options["scale"] = float(rng.choice([0.0, 0.3, -0.2]))


def _poison(arrays, lengths, lead) -> None:
    """Put NaN where no row may look: the results must not show it."""
    if lengths is None:
        return
    for entry in np.ndindex(*lead):
        length = int(np.asarray(lengths)[entry])
        for name in ("key", "value"):
            arrays[name][entry][:, length:] = np.nan


def _unusual_memory(rng, array):
    """The same numbers in memory that a fast path may not expect, and a word for it."""
    how = rng.choice(["compact"] * 6 + ["fortran", "stepped", "reversed", "unaligned", "swapped"])
    if how == "fortran":
        array = np.asfortranarray(array)
    elif how == "stepped":
        wide = np.full((*array.shape[:-2], 2 * array.shape[-2], array.shape[-1] + 3), np.nan)
        view = wide.astype(array.dtype)[..., ::2, 1:-2]
        view[...] = array
        array = view
    elif how == "reversed":
        axis = int(rng.integers(array.ndim))
        array = np.flip(np.flip(array, axis).copy(), axis)
    elif how == "unaligned":
        view = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
        view[...] = array
        array = view
    elif how == "swapped" and array.dtype.char in "efd":
        array = array.astype(array.dtype.newbyteorder())
    else:
        how = "compact"
    return array, str(how)
