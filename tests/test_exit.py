# SPDX-License-Identifier: MIT
# The end of a process: soon and with the right status, whatever the pool is doing.
# Used by pytest on every backend; mostly it is forked copies of a process that end, many times.
# Signals that do not end the process are the matter of test_signals.py.
"""Every way out of a process: return, exit handlers, daemon threads, os._exit, SIGTERM."""

import os
import re
from pathlib import Path

import pytest
from cases import EXHAUSTIVE

import fastattn

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or os.environ.get("FASTATTN_TEST_SANITIZER") == "thread",
    reason="needs fork, and ThreadSanitizer loses count of the threads of forked processes",
)

TIMES = 100 if EXHAUSTIVE else 20  # how often a process ends

# `ends` repeats what follows it: each time in a forked copy, the last time in the process itself.
SCRIPT = """
import atexit, os, signal, sys, threading, time
LATE_HANDLER
import fastattn
from children import PATIENCE, check_calls, endless, sdpa, status_of

signal.signal(signal.SIGTERM, signal.SIG_DFL)
SECONDS = 2 * PATIENCE

def ends(times, status=0):
    for _ in range(times - 1):
        pid = os.fork()
        if pid == 0:
            return
        got = status_of(pid, SECONDS)
        assert got == status, f"status {got}"
    print("done", flush=True)

def in_daemon(body):
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread
"""


def runner(run_python, backend):
    """run(code): run the common part and the code on a backend; check how the process ends."""

    def run(code, status=0, late_handler=""):
        done = run_python(
            f"{SCRIPT.replace('LATE_HANDLER', late_handler)}{code}", timeout=100,
            FASTATTN_BACKEND=backend, OPENBLAS_NUM_THREADS="1", PYTHONWARNINGS="ignore",
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (status, "done\n"), done
        # Sanitizers have something to say about forks of processes with threads.
        assert not done.stderr or "FASTATTN_TEST_SANITIZER" in os.environ, done

    return run


@pytest.fixture
def exits(backend, run_python):
    return runner(run_python, backend)


@pytest.fixture(params=[name for name in fastattn.backends() if name != "numpy"])
def pool_exits(request, run_python):
    """For what concerns the pool, which NumPy's backend does not use."""
    return runner(run_python, request.param)


def times(backend):
    return 2 if backend == "numpy" else TIMES


def test_right_after_a_call(exits, backend):
    """Case 130: return from the main module with the workers still awake."""
    exits(f"""
ends({times(backend)})
check_calls(4)
""")


def test_a_forked_worker(exits, backend):
    """Case 130: the same in a process forked from one that has computed."""
    exits(f"""
check_calls(4)
ends({times(backend) // 2})
check_calls(4)
""")


def test_with_an_exit_status(pool_exits):
    """Case 130: sys.exit in the middle of everything keeps its status."""
    pool_exits(f"""
ends({TIMES // 4}, status=3)
in_daemon(lambda: check_calls(4))
check_calls(3)
sys.exit(3)
""", status=3)  # fmt: skip


def test_os_exit(pool_exits):
    """Case 130: os._exit, idle and with a call in flight."""
    pool_exits(f"""
ends({TIMES // 4}, status=7)
check_calls(4)
in_daemon(lambda: sdpa(**endless("decode")))
time.sleep(0.02)
os._exit(7)
""", status=7)  # fmt: skip


def test_daemon_threads_in_short_calls(pool_exits):
    """Cases 130 and 131: eight daemon threads compute one call after the other for ever."""
    pool_exits(f"""
def compute():
    while True:
        check_calls(4)

ends({TIMES})
for _ in range(8):
    in_daemon(compute)
time.sleep(0.02)
""")


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_daemon_thread_in_a_long_call(pool_exits, kind):
    """Case 130: a daemon thread is in a call, and its helpers in tasks, of many minutes."""
    pool_exits(f"""
for n_threads in (1, 4):
    fastattn.set_num_threads(n_threads)
    pid = os.fork()
    if pid == 0:
        in_daemon(lambda: sdpa(**endless("{kind}")))
        time.sleep(0.2)
        sys.exit(6)
    got = status_of(pid, SECONDS)
    assert got == 6, f"status {{got}}"
print("done")
""")


def test_daemon_threads_while_the_interpreter_goes(pool_exits):
    """Case 131: calls are in flight while the interpreter stops all other threads.

    An exit handler that is older than the import of fastattn runs after those of fastattn: the
    daemon threads begin new calls, of a few hundred milliseconds.  The object that sleeps in its
    finalizer gives them time to notice that the interpreter is gone.  Their large stacks go
    back to the system as soon as they end.
    """
    pool_exits(f"""
import numpy as np

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)

rng = np.random.default_rng(1)
k, v = rng.standard_normal((2, 1, 1, 3000, 64), np.float32)
q = rng.standard_normal((1, 1, 400, 64), np.float32)
begin = time.perf_counter()
sdpa(q, k, v)
rows = int(400 * min(100, 0.15 / (time.perf_counter() - begin))) + 1
q = rng.standard_normal((1, 1, rows, 64), np.float32)

def compute():
    with fastattn.threads(4):
        while True:
            sdpa(q, k, v)

threading.stack_size(64 << 20)
ends({TIMES // 10})
sys.late = Late()
for _ in range(3):
    in_daemon(compute)
time.sleep(0.05)
""", late_handler="atexit.register(time.sleep, 0.4)")  # fmt: skip


def test_exit_handlers_that_call(exits, backend):
    """Case 130: exit handlers compute, before and after the pool has been ended at exit."""
    exits(
        f"""
ends({times(backend)}, status=6)
check_calls(4)
atexit.register(compute, 4)
""",
        status=6,
        late_handler="""
def compute(n_threads):
    try:
        check_calls(n_threads)
    except BaseException as error:
        sys.stderr.write(repr(error))
        os._exit(1)
atexit.register(os._exit, 6)
atexit.register(compute, 3)
atexit.register(compute, 1)
""",
    )


def test_sigterm(exits, backend):
    """Case 130: SIGTERM ends the process at any moment, by itself or by a handler's exception."""
    exits(f"""
def live(moment, status):
    if status == 5:
        signal.signal(signal.SIGTERM, lambda *args: sys.exit(5))
    check_calls(4)
    os.write(write_end, b"x")
    if moment == "in a long call":
        with fastattn.threads(4):
            sdpa(**endless("prefill"))
    while True:
        time.sleep(100) if moment == "idle" else check_calls(4)

read_end, write_end = os.pipe()
moments = [(moment, status) for moment in ("idle", "in a call", "in a long call")
           for status in (5, -signal.SIGTERM)]
for moment, status in moments * {times(backend) // 10 + 1}:
    pid = os.fork()
    if pid == 0:
        live(moment, status)
    os.read(read_end, 1)
    time.sleep(0.02)
    os.kill(pid, signal.SIGTERM)
    got = status_of(pid, SECONDS)
    assert got == status, f"status {{got}} when it was {{moment}}"
print("done")
""")


def test_an_unhandled_interrupt(pool_exits):
    """Case 130: Ctrl-C in a long call that nobody catches ends the process as usual."""
    pool_exits("""
read_end, write_end = os.pipe()
pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.write(write_end, b"x")
    with fastattn.threads(4):
        sdpa(**endless("decode"))
os.read(read_end, 1)
time.sleep(0.1)
os.kill(pid, signal.SIGINT)
assert status_of(pid, SECONDS) == -signal.SIGINT
print("done")
""")


def test_the_c_code_knows_no_python():
    """Case 131: workers run only what is below csrc, and nothing there is of Python."""
    csrc = Path(__file__).resolve().parent.parent / "csrc"
    if not csrc.is_dir():
        pytest.skip("the C sources are not beside the tests")
    for path in sorted(csrc.rglob("*.[ch]")):
        code = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.findall(r"\bPy[A-Z_]\w*|Python\.h", code), path


def test_exit_with_closed_streams(pool_exits):
    """Nothing is printed at exit that would miss the closed streams."""
    pool_exits("""
pid = os.fork()
if pid == 0:
    check_calls(4)
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    sys.exit(4)
assert status_of(pid, SECONDS) == 4
print("done")
""")
