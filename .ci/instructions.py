# SPDX-License-Identifier: MIT
# The regression guard: instructions of the calls in instructions.c against instructions.json.
# Used by `.ci/run instructions`, and by hand with --update after a change of csrc/.
# It takes no time: on shared machines times say less than counts, but counts see no cache miss.
"""python .ci/instructions.py [--update]. Exits 1 when a count is more than 3 % off, up or down.

Counted is the code of csrc/ alone, under valgrind's callgrind: what the C library executes depends
on its version and on the CPU (it is 1.5 % of a call or less, 3 % where exp() is called key by key).
AVX-512 is missing because valgrind does not know it.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMITTED = HERE / "instructions.json"
BACKENDS = ("avx2", "scalar")
LIMIT_PERCENT = 3.0


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def compiler():
    """Name, version and target: counts of one compiler say nothing about another's."""
    return f"gcc {output('gcc', '-dumpfullversion')} {output('gcc', '-dumpmachine')}"


def without_minor(text):
    return re.sub(r"(\d+)\.\S+", r"\1", text, count=1)


def build(program):
    """instructions.c and all of csrc/, with the flags that .ci/run calls SHIPPED."""
    flags = re.search(r"^SHIPPED=\((.*)\)$", (HERE / "run").read_text(), re.MULTILINE)[1]
    sources = [HERE / "instructions.c", *sorted(HERE.parent.glob("csrc/**/*.c"))]
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", *shlex.split(flags)]
    subprocess.run([*command, *sources, "-o", program, "-lm"], check=True, cwd=HERE.parent)


def own_instructions(dump, program):
    """The sum over the lines of a callgrind dump that belong to the program's own object file."""
    count, is_own, is_callee = 0, False, False
    for line in dump.read_text().splitlines():
        if line.startswith("ob="):
            is_own = line[3:] == str(program)
        elif line.startswith("calls="):  # the next line repeats what the callee has itself
            is_callee = True
        elif line[:1].isdigit():
            count += int(line.split()[1]) if is_own and not is_callee else 0
            is_callee = False
    return count


def measure(program, backend):
    """{call: instructions}: callgrind counts within fa_sdpa and dumps each time it returns."""
    dumps = program.with_name(backend)
    command = ["valgrind", "--quiet", "--tool=callgrind", "--compress-strings=no"]
    command += ["--compress-pos=no", "--toggle-collect=fa_sdpa", "--dump-after=fa_sdpa"]
    done = subprocess.run(
        [*command, f"--callgrind-out-file={dumps}", program, backend],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"error: {backend}: {done.stderr}")
    calls = done.stdout.splitlines()
    counts = {
        call: own_instructions(Path(f"{dumps}.{i}"), program) for i, call in enumerate(calls, 1)
    }
    if Path(f"{dumps}.{len(calls) + 1}").exists() or min(counts.values()) == 0:
        sys.exit(f"error: {backend}: the dumps do not match the calls")
    del counts["warm-up"]
    return counts


def compare(committed, now):
    """Prints the table; returns how many counts are beyond the limit, or on one side only."""
    n_bad = 0
    print(f"{'call':16}{'backend':9}{'committed':>13}{'now':>13}{'change %':>10}")
    for backend in BACKENDS:
        old, new = committed.get(backend, {}), now[backend]
        for call in {**old, **new}:
            a, b = old.get(call), new.get(call)
            change = 100.0 * (b - a) / a if a and b else None
            is_bad = change is None or abs(change) > LIMIT_PERCENT
            shown = "-" if change is None else f"{change:+.2f}"
            note = "  <--" if is_bad else ""
            print(f"{call:16}{backend:9}{a or '-':>13}{b or '-':>13}{shown:>10}{note}")
            n_bad += is_bad
    return n_bad


def main():
    for command in ("gcc", "valgrind"):
        if not shutil.which(command):
            sys.exit(f"error: {command} is missing")
    is_update = sys.argv[1:] == ["--update"]
    if sys.argv[1:] and not is_update:
        sys.exit(__doc__)
    here = compiler()
    committed = json.loads(COMMITTED.read_text()) if COMMITTED.exists() else {}
    there = committed.get("compiler", "none")
    if not is_update and without_minor(here) != without_minor(there):
        print(f"NOTHING COMPARED: the committed counts are of {there}; this is {here}")
        return

    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder).resolve() / "instructions"
        build(program)
        counts = {backend: measure(program, backend) for backend in BACKENDS}
    n_bad = compare(committed.get("instructions", {}), counts)
    if is_update:
        text = json.dumps({"compiler": here, "instructions": counts}, indent=4)
        COMMITTED.write_text(text + "\n")
        print(f"written: {COMMITTED.name}")
    elif n_bad:
        print(f"{n_bad} beyond {LIMIT_PERCENT:g} %. If this is meant, also where it is a gain: run")
        print("    python .ci/instructions.py --update")
        print("and commit .ci/instructions.json with the change.")
        sys.exit(1)


if __name__ == "__main__":
    main()
