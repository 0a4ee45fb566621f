"""A machine that runs out of something ends a fit in one sentence with exit code 7; nothing is half-written, and it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from runs import arrays_in

# One process with warm imports, and a fork for each limit.
LIMITED = """
import json, os, resource, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from sfumato.testing.fuzz import warm
warm()
from sfumato.cli.main import app

home = Path(sys.argv[1])
WORDS = ["fit", "mixture", "--set", "refine=false", "--data", str(home / "x.npz"), "--classes", "2"]
WORDS += ["--epsilon", "1", "--delta", "1e-5", "--quiet"]

def fit(out, limit=None, resume=False):
    told = home / "told"
    child = os.fork()
    if child == 0:
        handle = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1), os.dup2(handle, 2), os.close(handle)
        if limit is not None:
            which, size = limit
            if which == "AS":
                size += int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(getattr(resource, f"RLIMIT_{which}"), (size, size))
        try:
            app.main([*WORDS, "--out", str(out), *(["--resume"] if resume else [])])
        except SystemExit as end:
            os._exit(end.code or 0)
        finally:
            os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, told.read_text()

for limit in [("FSIZE", 300), ("FSIZE", 20_000), ("NOFILE", 6), ("AS", 1 << 16)]:
    out = home / "-".join(map(str, limit))
    code, told = fit(out, limit)
    strays = [p.name for p in home.rglob("*") if ".part" in p.name or p.name.startswith(".tmp")]
    again, why = fit(out, resume=out.exists())
    print(json.dumps([limit, code, told, strays, again, why]), flush=True)
"""


def test_limits_of_the_machine_end_a_fit_in_one_sentence_and_it_goes_on(tmp_path: Path) -> None:
    arrays_in(tmp_path, size=16, x=60)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 4, done.stderr
    for limit, code, told, strays, again, why in lines:
        if limit[0] == "FSIZE" and limit[1] < 1_000:
            # Not even the sentence fits into its file.
            assert code == 7, (limit, told)
        elif limit != ["AS", 1 << 16] or code:
            # What little memory a fit of this size needs may be there already.
            assert code == 7, (limit, told)
            assert told.startswith("Error: "), (limit, told)
            assert told.count("\n") == 1, (limit, told)
        assert strays == [], limit
        assert again == 0, (limit, why)
