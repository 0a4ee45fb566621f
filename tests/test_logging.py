"""What is logged under the name `sfumato`: nothing unless asked for, and public facts only."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest

import sfumato
from sfumato.data import Dataset


@pytest.mark.parametrize("relation", ["zero-out", "add-remove"])
def test_a_fit_logs_what_its_run_folder_tells_and_nothing_of_the_rows(caplog, relation):
    draw = np.random.default_rng(0)

    def told(n: int) -> list[str]:
        """Everything but ε's last digits, which follow the public number of records where there is one."""
        caplog.clear()
        images = draw.integers(0, 256, (n, 1, 6, 6), dtype=np.uint8)
        data = Dataset.from_arrays(images, np.arange(n) % 2, classes=2, name="scans")
        tiny = sfumato.Merf(**sfumato.Merf.TINY)
        model = tiny.fit(data, epsilon=3, delta=1e-5, neighbours=relation)
        model.sample(5, seed=7)
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level(logging.DEBUG, logger="sfumato"):
        first, second = told(83), told(97)
    assert first == second  # other rows, and more of them: the same words
    assert "merf" in first[0].lower() and "epsilon=3" in first[0] and relation in first[0]
    assert any(line.startswith("released: ") for line in first)
    assert "seed 7" in first[-1]
    assert all(record.name.startswith("sfumato") for record in caplog.records)


def test_nothing_is_printed_unless_logging_is_set_up():
    code = (
        "import sfumato, logging\n"
        "assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger('sfumato').handlers)\n"
        "logging.getLogger('sfumato').error('quiet')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == found.stderr == ""
