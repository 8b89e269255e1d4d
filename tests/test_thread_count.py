# SPDX-License-Identifier: MIT
# The default number of threads: CPU affinity, control groups, environment variables.
# Used by pytest; files of control groups are made up below tmp_path.
# It starts no thread and runs no kernel.
"""min(affinity, ceil(quota), OMP_NUM_THREADS), at least 1; FASTATTN_NUM_THREADS overrides."""

import math
import os
import shutil
import subprocess
import sys

import pytest

import fastattn
from fastattn import _threads


def make_files(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.fixture
def machine(monkeypatch):
    """machine(n_cpus, quota): what the process may use, as far as _threads can see."""

    def pretend(n_cpus, quota=None):
        monkeypatch.setattr(_threads, "cpu_count", lambda: (n_cpus, "CPU affinity"))
        monkeypatch.setattr(_threads, "cgroup_quota", lambda: quota)

    return pretend


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("max 100000", None),
        ("200000 100000", 2),
        ("50000 100000", 1),
        ("150000 100000", 2),
        ("-1 100000", None),
        ("0 100000", None),
        ("100000 0", None),
        ("", None),
        ("100000", None),
        ("a b", None),
        ("1 2 3", None),
        ("1e5 100000", None),
        ("100000\n100000\n", 1),
    ],
)
def test_quota_text(text, cpus):
    quota = _threads.parse_quota(text)
    assert (quota if quota is None else math.ceil(quota)) == cpus


def test_version_2_takes_the_least_of_all_ancestors(tmp_path):
    root = make_files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b/c\n",
            "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/a/b/c/cpu.max": "max 100000\n",
        },
    )
    assert _threads.cgroup_quota(root) == 1.5


def test_version_2_inside_a_container_looks_at_the_root_of_the_mount(tmp_path):
    root = make_files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/docker-1234.scope\n",
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
        },
    )
    assert _threads.cgroup_quota(root) == 2.0


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_version_1_reads_quota_and_period(tmp_path, mount):
    folder = f"sys/fs/cgroup/{mount}"
    root = make_files(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/x/y\n",
            f"{folder}/cpu.cfs_quota_us": "-1\n",
            f"{folder}/cpu.cfs_period_us": "100000\n",
            f"{folder}/x/cpu.cfs_quota_us": "400000\n",
            f"{folder}/x/cpu.cfs_period_us": "100000\n",
            f"{folder}/x/y/cpu.cfs_quota_us": "250000\n",
            f"{folder}/x/y/cpu.cfs_period_us": "100000\n",
        },
    )
    assert _threads.cgroup_quota(root) == 2.5


def test_a_quota_is_found_beside_other_hierarchies(tmp_path):
    # What a hybrid machine shows: an empty unified hierarchy and the controllers of version 1.
    root = make_files(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpuset:/j\n2:cpu:/j\n0::/j\n",
            "sys/fs/cgroup/cpu/j/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/j/cpu.cfs_period_us": "100000\n",
        },
    )
    assert _threads.cgroup_quota(root) == 1.0


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": ""},
        {"proc/self/cgroup": "nonsense\n\n::::\n0\n"},
        {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "many few\n"},
        {"proc/self/cgroup": "0::/../../a\n", "a/cpu.max": "100000 100000\n"},
        {"proc/self/cgroup": "2:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n"},
    ],
)
def test_missing_or_garbled_files_limit_nothing(tmp_path, files):
    assert _threads.cgroup_quota(make_files(tmp_path, files)) is None


@pytest.mark.parametrize(
    ("n_cpus", "quota", "environment", "wanted"),
    [
        (8, None, {}, 8),
        (8, 2.0, {}, 2),
        (8, 0.5, {}, 1),
        (8, 1.5, {}, 2),
        (2, 7.5, {}, 2),
        (8, None, {"OMP_NUM_THREADS": "3"}, 3),
        (8, None, {"OMP_NUM_THREADS": "4,2"}, 4),
        (8, 2.0, {"OMP_NUM_THREADS": "3"}, 2),
        (2, None, {"OMP_NUM_THREADS": "64"}, 2),
        (8, 2.0, {"FASTATTN_NUM_THREADS": "5", "OMP_NUM_THREADS": "3"}, 5),
        (2, None, {"FASTATTN_NUM_THREADS": "64"}, 64),
        (5000, None, {}, 1024),
    ],
)
def test_default(machine, n_cpus, quota, environment, wanted):
    machine(n_cpus, quota)
    n_threads, why, bad = _threads.find_default(environment)
    assert (n_threads, bad) == (wanted, [])
    assert why


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "FASTATTN_NUM_THREADS"])
@pytest.mark.parametrize(
    "value", ["abc", "0", "-1", "1.5", "0x2", "9" * 40, "\u0663", ",", "two,1"]
)
def test_bad_values_are_reported_and_ignored(machine, name, value):
    machine(6)
    n_threads, _why, bad = _threads.find_default({name: value})
    assert n_threads == 6
    assert len(bad) == 1
    assert bad[0].startswith(f"{name}: expected")


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_variable_is_as_good_as_none(machine, value):
    machine(6)
    environment = {"OMP_NUM_THREADS": value, "FASTATTN_NUM_THREADS": value}
    assert _threads.find_default(environment)[::2] == (6, [])


def test_affinity_counts(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 9}, raising=False)
    assert _threads.cpu_count()[0] == 3


@pytest.mark.parametrize(("count", "wanted"), [(4, 4), (None, 1)])
def test_without_affinity_the_cpu_count_counts(monkeypatch, count, wanted):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert _threads.cpu_count()[0] == wanted


def test_a_forbidden_affinity_call_falls_back(monkeypatch):
    def forbidden(pid):
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", forbidden, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert _threads.cpu_count()[0] == 7


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_taskset_is_respected():
    cpu = min(os.sched_getaffinity(0))
    folder = os.path.dirname(os.path.dirname(os.path.abspath(fastattn.__file__)))
    code = f"import sys; sys.path.insert(0, {folder!r}); import fastattn"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_NUM_THREADS", "FASTATTN_NUM_THREADS")
    }
    done = subprocess.run(
        [
            "taskset",
            "-c",
            str(cpu),
            sys.executable,
            "-c",
            f"{code}; print(fastattn.get_num_threads())",
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "1\n"
