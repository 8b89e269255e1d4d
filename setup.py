# SPDX-License-Identifier: MIT
# The only build logic: one extension from one Cython file and every C file under csrc/.
# Used by pip through pyproject.toml, which holds the metadata.
# It knows no ISA and sets no per-file flags: a C file of another architecture compiles to nothing.
"""Environment: FASTATTN_BUILD, words separated by commas.

required  a failed extension is an error (else the package installs as pure Python and says so
          once when it is imported)
asserts   contracts between the C layers are checked (-DFA_ASSERTS), symbols are kept (-g)

CC, CFLAGS and LDFLAGS mean what they always mean: `CFLAGS=-fsanitize=address` is enough for an
AddressSanitizer build, and a `-O1` in CFLAGS takes the place of -O3.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from glob import glob

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WORDS = {word for word in os.environ.get("FASTATTN_BUILD", "").split(",") if word}
if WORDS - {"required", "asserts"}:
    raise SystemExit(f"FASTATTN_BUILD: expected words of 'required,asserts', got {sorted(WORDS)}")

# Infinities, NaN and the exact IEEE result of every operation are part of the contract, so nothing
# of the -ffast-math family is here, -fno-trapping-math neither (it may raise flags the source does
# not raise).  A fused multiply-add happens where it is written (-ffp-contract=off).
# -fno-math-errno only lets sqrt and floor become instructions: no value changes.
GCC_FLAGS = ["-std=c11", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"]
GCC_FLAGS += ["-pthread", "-g" if "asserts" in WORDS else "-g0"]
if "-O" not in os.environ.get("CFLAGS", ""):
    GCC_FLAGS += ["-O3"]
MSVC_FLAGS = ["/std:c11", "/O2", "/fp:precise"]


class BuildExt(build_ext):
    """Pick the flags once the compiler is known, and keep generated C out of the source tree."""

    def initialize_options(self):
        super().initialize_options()
        self.cython_c_in_temp = True

    def build_extensions(self):
        is_msvc = self.compiler.compiler_type == "msvc"
        for ext in self.extensions:
            ext.extra_compile_args = MSVC_FLAGS if is_msvc else GCC_FLAGS
            ext.extra_link_args = [] if is_msvc else ["-pthread"]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self.compile_in(pool)
            super().build_extensions()

    def compile_in(self, pool):
        """As many files at once as there are cores: setuptools compiles one after another."""
        compile_one, link = self.compiler._compile, self.compiler.link_shared_object
        jobs = []

        def link_after(*args, **kwargs):
            while jobs:
                jobs.pop().result()  # raises what the compiler raised
            link(*args, **kwargs)

        self.compiler._compile = lambda *args: jobs.append(pool.submit(compile_one, *args))
        self.compiler.link_shared_object = link_after


def files(*patterns):
    """Sorted, so that two builds see the same order; relative with '/', as setuptools wants it."""
    found = {path for pattern in patterns for path in glob(pattern, recursive=True)}
    return sorted(path.replace(os.sep, "/") for path in found)


native = Extension(
    "fastattn._native",
    sources=["fastattn/_native.pyx", *files("csrc/**/*.c")],
    # Also what an incremental build watches, and what the source distribution ships.
    depends=files("csrc/**/*.h", "fastattn/*.pxd"),
    include_dirs=["csrc", numpy.get_include()],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")]
    + [("FA_ASSERTS", "1")] * ("asserts" in WORDS),
    optional="required" not in WORDS,
)

setup(ext_modules=[native], cmdclass={"build_ext": BuildExt})
