"""Readers of qpbo, mis and mrf on damaged files, in a process of little memory: an error of ours at once, or an instance."""

import resource
import subprocess
import sys

import pytest

SEEDS = {
    "a.sparse": "3 4\n1 1 -5\n1 2 2\n2 3 -1.5\n3 3 4\n",
    "a.mc": "4 3\n1 2 1\n2 3 -1\n3 4 1\n",
    "a.clq": "c text\np edge 4 3\nn 1 2.5\nn 2 1\nn 4 3\nn 3 1\ne 1 2\ne 4 2\ne 3 4\n",
    "a.uai": "MARKOV\n2\n2 3\n2\n1 0\n2 1 0\n\n2\n 0.5 1\n6\n 1 2\n 3 4\n 5 0\n",
    "a.LG": "MARKOV\n2\n2 3\n2\n1 0\n2 1 0\n\n2\n 0.5 1\n6\n 1 2\n -3 4\n 5 0\n",
    "a.wcsp": "small 3 3 4 12\n2 3 2\n2 0 1 7 2\n0 2 5\n1 0 100\n1 2 0 1\n1 9\n0 4 0\n3 0 1 2 1 1\n1 2 1 12\n",
    "a.qpbo": "-3 -3\n1 1 3\n1 2 -1.5\n2 2 4\n",
    "a.evid": "2 1 0 0 1\n",
}

CHILD = """
import random, sys, time, zlib
from pathlib import Path
from blocklp.errors import BlocklpError
from blocklp.problems.mis import read_graph
from blocklp.problems.mrf import read_evidence, read_mrf
from blocklp.problems.qpbo import read_qubo

folder, seeds = Path(sys.argv[1]), eval(sys.argv[2])
readers = {".sparse": read_qubo, ".mc": read_qubo, ".clq": read_graph, ".evid": read_evidence}
NUMBERS = "100000000 200 0 -1 nan inf 1e400 1e308 999999999999999999 99999999999999999999 1_0 0.5".split()
read = refused = 0
for name, text in seeds.items():
    rng = random.Random(zlib.crc32(name.encode()))
    for _ in range(60):
        words = text.replace("\\n", " \\n ").split(" ")
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            k = rng.randrange(len(words))
            kind = rng.randrange(5)
            if kind == 0:
                words = words[:k] + ["\\n"]
            elif kind == 1:
                words[k], words[0] = words[0], words[k]
            elif kind == 2:
                words.insert(k, words[rng.randrange(len(words))])
            else:
                words[k] = rng.choice(NUMBERS)
            words = words or [""]
        data = " ".join(words).encode()
        if rng.random() < 0.1:
            data = bytes(b ^ (rng.random() < 0.05) * rng.randrange(256) for b in data)
        path = folder / name
        path.write_bytes(data)
        began = time.process_time()
        try:
            readers.get(path.suffix, read_mrf)(path, max_bytes=2**26)
            read += 1
        except BlocklpError:
            refused += 1
        except BaseException as error:
            raise SystemExit(f"{name}: {error!r} of {data!r}")
        if time.process_time() - began > 3:  # an idle machine needs milliseconds
            raise SystemExit(f"{name}: too slow on {data!r}")
print(read, refused)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_damaged_files_are_refused_at_once_in_little_memory(tmp_path):
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))  # torch alone maps some

    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", CHILD, str(tmp_path), repr(SEEDS)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    read, refused = map(int, done.stdout.split())
    assert read > 20 and refused > 200
