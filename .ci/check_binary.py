# SPDX-License-Identifier: MIT
# What may be inside a Linux wheel: its files and the compiled module, read with binutils.
# Used by `.ci/run wheel` and by the wheel workflow, after auditwheel.
# It runs nothing of the wheel; the test suite does.
"""python .ci/check_binary.py WHEEL. Prints every violation and exits 1 when there is one."""

import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MAX_WHEEL_BYTES = 3 * 512 * 1024  # 1.5 MiB
MAX_TLS_BYTES = 256  # what a process can still load late, with room for others
LIBRARIES = re.compile(r"(libc|libm|libpthread|ld-linux.*|libc\.musl-.*)\.so(\.\d+)?")
WHEEL_FILES = re.compile(r"fastattn/.*\.(py|pyi|typed|so)|fastattn-[^/]*\.dist-info/.*")

# x86 only: what may use wide registers comes from isa/<isa>.c or isa/<isa>_f64.c, or has the ISA
# in its name.
ISA_FILE = re.compile(r"(avx2|avx512)(?:_f64)?\.c")
ISA_SUFFIX = re.compile(r"__(avx2|avx512)(?:_f64)?(\..*)?$")
WIDE = {"avx2": re.compile(r"%ymm"), "avx512": re.compile(r"%zmm|%k[0-7]\b")}
# Encodings that a baseline x86-64 does not have. (tzcnt is missing: as `rep bsf` it is harmless.)
BEYOND_BASELINE = re.compile(
    r"^(v[a-z]|(andn|bextr|blsi|blsr|blsmsk|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|lzcnt)[lq]?$)"
)

problems = []


def check(condition, message):
    if not condition:
        problems.append(message)


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_files(wheel, names):
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1024:.0f} KiB, {len(names)} files")
    check(size <= MAX_WHEEL_BYTES, f"the wheel has {size} bytes, at most {MAX_WHEEL_BYTES}")
    check("fastattn/py.typed" in names, "fastattn/py.typed is missing")
    for name in names:
        check(WHEEL_FILES.fullmatch(name), f"{name} does not belong in a wheel")


def check_dynamic(module, tag):
    """Exports, libraries, C library version, thread-local storage."""
    exported = {
        line.split()[-1]
        for line in output("nm", "-D", "--defined-only", module).split("\n")
        if line
    }
    check(exported == {"PyInit__native"}, f"exported: {sorted(exported)}")

    for name in re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", module)):
        check(LIBRARIES.fullmatch(name), f"needs {name}")

    versions = re.findall(r"GLIBC_([\d.]+)", output("objdump", "-T", module))
    newest = max((tuple(map(int, v.split("."))) for v in versions), default=(0,))
    allowed = min(
        (tuple(map(int, v)) for v in re.findall(r"manylinux_(\d+)_(\d+)", tag)), default=None
    )
    print(f"newest GLIBC symbol {newest}, tag allows {allowed}")
    check("musllinux" in tag or allowed is not None, f"no platform policy in the tag {tag}")
    check(allowed is None or newest <= allowed, f"GLIBC {newest} is newer than the tag's {allowed}")

    tls = re.search(r"^\s*TLS\s+(?:0x\S+\s+){4}(0x\S+)", output("readelf", "-lW", module), re.M)
    n_bytes = int(tls.group(1), 16) if tls else 0
    print(f"thread-local storage: {n_bytes} bytes")
    check(n_bytes <= MAX_TLS_BYTES, f"{n_bytes} bytes of thread-local storage")
    relocations = output("readelf", "-rW", module)
    check(not re.search("TPOFF|TPREL", relocations), "relocations that need static TLS")

    symbols = output("nm", module)
    check("set_fast_math" not in symbols, "linked with -ffast-math: changes the FPU of the process")


def function_isas(module):
    """Address -> ISA of functions compiled for one. Local symbols stand behind their file's."""
    isas, of_file = {}, None
    for line in output("readelf", "-sW", module).splitlines():
        words = line.split()
        if len(words) < 8 or words[3] not in ("FILE", "FUNC"):
            continue
        address, kind, bind, name = int(words[1], 16), words[3], words[4], words[7]
        if kind == "FILE":
            match = ISA_FILE.fullmatch(name)
            of_file = match and match.group(1)
        elif bind == "LOCAL" and of_file:
            isas[address] = of_file
        elif match := ISA_SUFFIX.search(name):
            isas[address] = match.group(1)
    return isas


def check_registers(module):
    """Wide registers only where the dispatcher has asked the CPU first."""
    isas = function_isas(module)
    function, isa, uses = "", None, {}
    for line in output("objdump", "-d", "--no-show-raw-insn", module).splitlines():
        if label := re.match(r"([0-9a-f]+) <(.*)>:", line):
            function, isa = label.group(2), isas.get(int(label.group(1), 16))
            continue
        instruction = line.split("\t")[1].strip() if "\t" in line else ""
        if isa is None and BEYOND_BASELINE.match(instruction.split(" ")[0]):
            problems.append(f"{function}: {instruction}")
        if isa != "avx512" and WIDE["avx512"].search(instruction):
            problems.append(f"{function}: {instruction}")
        if isa and WIDE[isa].search(instruction):
            uses[isa] = uses.get(isa, 0) + 1
    print(f"instructions with wide registers: {uses}")
    for isa in WIDE:
        check(uses.get(isa), f"no {isa} code at all: stripped, or built without it?")


def main():
    wheel = Path(sys.argv[1])
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        check_files(wheel, names)
        modules = [name for name in names if re.fullmatch(r"fastattn/_native\..*\.so", name)]
        check(len(modules) == 1, f"expected one compiled module, found {modules}")
        for name in modules:
            module = archive.extract(name, folder)
            check_dynamic(module, wheel.stem)
            if platform.machine() == "x86_64":
                check_registers(module)
    for problem in problems[:40]:
        print("error:", problem)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
