"""The walk of a record is short, and the page about it is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sfumato.testing import rooms
from sfumato.testing.walk import Walk, follow, page

pytestmark = pytest.mark.xdist_group("walk")  # one walk for all of them

PAGE = Path(__file__).parent.parent / "docs" / "walk.md"


@pytest.fixture(scope="module")
def mixture() -> Walk:
    return follow("mixture")


def test_a_group_of_tests_stays_on_one_worker(request):
    if request.config.getoption("loadgroup", False):  # set by pytest-xdist, in its workers
        assert request.node.nodeid.endswith("@walk")


def test_no_sum_leads_a_record_through_more_than_four_changes_of_room(mixture):
    assert len(mixture.sums) == 12
    changes = {label: mixture.changes_of_room(label) for label in mixture.sums}
    assert changes == {**dict.fromkeys(mixture.sums, 4), "tone": 3}  # it looks at pixels themselves


def test_few_functions_outside_the_wall_hold_private_rows(mixture):
    outside = mixture.outside()
    assert 0 < len(outside) <= 12
    assert len({s.file for s in outside}) <= 6


def test_the_page_tells_what_is_so(mixture):
    def told(text: str) -> str:
        return re.sub(
            r":\d+`", "`", text
        )  # lines move with every edit; `make docs` writes them anew

    assert told(PAGE.read_text()) == told(page(mixture)), (
        "python -m sfumato.testing.walk > docs/walk.md"
    )


def test_every_room_of_the_source_is_in_the_table_of_sizes_and_every_module_counts_once():
    there = {p.relative_to(rooms.SOURCE).parent.as_posix() for p in rooms.SOURCE.rglob("*.py")}
    assert there == set(rooms.PLAN)
    named = [name for names in rooms.SINCE.values() for name in names.split()]
    assert len(named) == len(set(named))
    total = sum(rooms.lines(p) for p in rooms.SOURCE.rglob("*.py"))
    assert f"**{total:,}**" in rooms.table()
