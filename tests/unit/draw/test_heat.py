"""The rank map: levels, legend, grid, cursor, and possible cell contents."""

from __future__ import annotations

import pytest
from ddptop.draw import heat
from ddptop.draw.ranks import rank_line
from ddptop.style import plain, rule, width
from tests.support.fake_home import NOW
from tests.support.own_views import rank

from ddptop_runner.judge.balance.imbalance import deviations
from ddptop_runner.model.snapshot import Alert, RankSample


def some(number: int = 128) -> list[RankSample]:
    """Rank 7 is slow and rank 9 is fast; nothing is known about rank 3."""
    times = {7: 0.45, 9: 0.2, 11: 0.33}
    return [
        rank(n, state="unknown")
        if n == 3
        else rank(n, state="running", step=100 - n % 2, step_time_s=times.get(n, 0.3), loss=2.0)
        for n in range(number)
    ]


def test_five_levels_by_glyph_and_style() -> None:
    ranks = some()
    cells = heat.map_cells("time", ranks, deviations(ranks, []))
    assert cells[0] == ("▄", "band")
    assert cells[7] == ("█", "busy")
    assert cells[9] == ("▁", "busy")
    assert cells[11] == ("▆", "median")
    assert len({glyph for glyph, _ in cells}) == 5, "four levels and the dot"


def test_a_figure_at_the_edge_of_a_level_has_that_level() -> None:
    ranks = [rank(number, step=step) for number, step in enumerate((100, 99, 98, 91, 90, 0))]
    assert "".join(glyph for glyph, _ in heat.map_cells("step", ranks, {})) == "▁▂▄▄▆█"


def test_cell_is_marked_if_an_alert_names_its_rank_and_figure() -> None:
    ranks = some()
    alert = Alert(id="straggler", severity="warning", ranks=[7], message="m", since=NOW)
    apart = deviations(ranks, [], [alert])
    warned = [n for n, one in enumerate(heat.map_cells("time", ranks, apart)) if one[1] == "warn"]
    assert warned == [7]
    assert "warn" not in {style for _, style in heat.map_cells("loss", ranks, apart)}


@pytest.mark.parametrize("key", heat.ORDER)
def test_unknown_is_a_dot_and_never_the_least_level(key: str) -> None:
    ranks = some()
    assert heat.map_cells(key, ranks, deviations(ranks, []))[3] == ("·", "faint")
    legend = plain(heat.legend(key, ranks, 80))
    assert "n/a" in legend and "·" in legend


@pytest.mark.parametrize("key", heat.ORDER)
def test_the_legend_and_the_key_beside_the_title_fit_60_columns(key: str) -> None:
    ranks = [*some(), rank(900, state="hung"), rank(901, state="failed")]
    legend = heat.legend(key, ranks, 60)
    assert width(legend) <= 60
    assert plain(legend) == plain(heat.legend(key, ranks, 80)), "nothing is left out"
    shown = plain(rule(f"1,024 ranks by {heat.name_of(key)}", 60, heat.map_hint("12-18 of 22")))
    assert "m next" in shown


def test_only_what_is_known_of_a_rank_can_be_shown() -> None:
    ranks = some()
    assert heat.known_figures(ranks, deviations(ranks, [])) == ["state", "step", "loss", "time"]


def test_states_have_their_own_glyphs_and_counts() -> None:
    ranks = [rank(0, state="running"), rank(1, state="hung"), rank(2, state="running")]
    assert [glyph for glyph, _ in heat.map_cells("state", ranks, {})] == ["●", "‖", "●"]
    assert plain(heat.legend("state", ranks, 80)).split() == ["●", "2", "running", "‖", "1", "hung"]


def test_the_worst_ranks_are_listed_and_the_calm_ones_not() -> None:
    ranks = some()
    found = heat.worst_ranks("time", ranks, deviations(ranks, []), 9)
    assert [(one, text) for one, (text, _) in found] == [(7, "+50%"), (11, "+10%")]
    ill = heat.worst_ranks("state", [*ranks, rank(900, state="hung")], {}, 9)
    assert [one for one, _ in ill] == [900]


def test_own_time_singles_out_who_is_waited_for() -> None:
    ranks = [
        rank(n, state="running", step_time_s=0.4, sync_s=0.0 if n == 70 else 0.1)
        for n in range(128)
    ]
    cells = heat.map_cells("busy", ranks, deviations(ranks, []))
    assert [n for n, cell in enumerate(cells) if cell[0] == "█"] == [70]
    assert set(heat.map_cells("time", ranks, deviations(ranks, []))) == {("▄", "band")}


@pytest.mark.parametrize(
    ("number", "cells", "rows", "per_row", "cell"),
    [(1024, 88, 16, 64, 1), (1024, 160, 16, 64, 2), (128, 80, 8, 32, 2), (1024, 79, 13, 72, 1)],
)
def test_the_grid(number: int, cells: int, rows: int, per_row: int, cell: int) -> None:
    grid = heat.heat_grid(number, cells, rows, number - 1)
    assert (grid.per_row, grid.cell) == (per_row, cell)
    assert grid.label + grid.per_row * grid.cell <= cells


def test_a_row_is_labeled_and_the_cursor_is_marked_without_color_too() -> None:
    ranks = some()
    cells = heat.map_cells("time", ranks, deviations(ranks, []))
    grid = heat.heat_grid(128, 80, 8, 127)
    first, second = (heat.map_row(row, grid, ranks, cells, 38) for row in (0, 1))
    assert plain(first).startswith("    0 ▄ ▄ ▄ · ▄ ▄ ▄ █ ▄ ▁ ▄ ▆ ")
    assert plain(second).startswith("▸  32 ▄ ")
    assert ("▄", "picked") in second and width(second) == grid.label + 64
    ruler = plain(heat.ruler(grid, 38, 80))
    assert ruler[grid.label + 6 * 2] == "▾"


def test_the_foot_tells_what_a_rank_does_as_its_screen_does() -> None:
    ranks = some()
    one = rank(7, state="running", gpu=1, loss=2.0, step_time_s=0.45)
    text = plain(rank_line(one, deviations(ranks, [])[7], None, NOW, True, 200))
    assert text == (
        " rank 7 ● running   step n/a   loss 2.0000 0%   time 450 ms +50%   host node-a"
        "   GPU 1: no metrics"
    )
