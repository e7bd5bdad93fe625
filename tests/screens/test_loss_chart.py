"""Keyboard and mouse control of charts, on a screen with two of them."""

from __future__ import annotations

import re

import msgspec
import pytest
from ddptop.charts.axis import View
from ddptop.charts.curves import ChartOptions, Curve, Curves, draw_curves
from ddptop.charts.plots import curves_of
from ddptop.job.keys import BACK, CHART
from ddptop.job.series import ChartData, Points, middle_of
from ddptop.sources.history import ChartQuery
from ddptop.sources.job import JobAnswer, JobQuery
from ddptop.style import plain
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.widgets.charts import ChartWidget, FigureChart, LossChart
from textual import events
from textual.app import App, ComposeResult
from textual.pilot import Pilot

LENGTH = 1000


def points(level: float, steps: bool = True) -> Points:
    values = [level + (LENGTH - t) / LENGTH for t in range(LENGTH)]
    t = [float(t) for t in range(LENGTH)]
    known = range(1, LENGTH + 1) if steps else ()
    return Points(t, values, values, values, step=list(known), attempt=[0] * len(known))


def losses(steps: bool = True) -> ChartData:
    series = {rank: points(2.0 + rank, steps) for rank in range(2)}
    return ChartData(
        middle=middle_of(series),
        number=2,
        series=series,
        since=0.0,
        until=float(LENGTH),
        last_step=LENGTH,
    )


class Both(MonitorScreen):
    """Losses above a value."""

    KEYS = "a job"
    BINDINGS = bindings((*CHART, BACK))

    def __init__(self) -> None:
        super().__init__()
        self.loss, self.figures = LossChart(), FigureChart("memory", id="figures")
        self.charts = (self.loss, self.figures)
        self.asked = 0

    def compose(self) -> ComposeResult:
        yield from (self.loss, self.figures)

    def needs(self) -> JobQuery:
        return JobQuery(job="a", chart=self.chart_query(200))

    def show(self, answer: JobAnswer) -> None:
        pass

    def on_query_changed(self, message: QueryChanged) -> None:
        message.stop()
        self.asked += 1


class Charts(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.both = Both()

    def on_mount(self) -> None:
        self.push_screen(self.both)


def text(chart: ChartWidget) -> str:
    return "\n".join(map(plain, chart.build(*chart.size)))


def title(chart: ChartWidget) -> str:
    return plain(chart.build(*chart.size)[0])


@pytest.fixture
async def pilot():
    app = Charts()
    async with app.run_test(size=(100, 30)) as pilot:
        app.both.loss.show_job(losses(), rank=1)
        memory = (Curve("memory", points(1.0), "bytes"),)
        app.both.figures.show(Curves(memory, since=0, until=LENGTH))
        await pilot.pause()
        yield pilot


def both_of(pilot: Pilot[None]) -> Both:
    assert isinstance(pilot.app, Charts)
    return pilot.app.both


class TestKeys:
    async def test_a_shows_other_curves_and_y_other_values(self, pilot: Pilot[None]) -> None:
        chart = both_of(pilot).loss
        await pilot.press("a")
        assert "━ rank 1" in title(chart) and "median" not in title(chart)
        await pilot.press("a", "y")
        assert "log scale" in title(chart)
        assert "━ rank 1" in title(chart)
        await pilot.press("a", "y")
        assert "log scale" not in title(chart) and "min to max" in title(chart)

    async def test_w_smooths_and_says_how_much(self, pilot: Pilot[None]) -> None:
        chart = both_of(pilot).loss
        for weight in ("0.9", "0.97"):
            await pilot.press("w")
            assert f"smoothing {weight} " in title(chart)
        await pilot.press("w")
        assert "smoothing" not in title(chart)

    async def test_m_shows_the_throughput_by_time_and_by_step(self, pilot: Pilot[None]) -> None:
        chart = both_of(pilot).loss
        await pilot.press("M")
        assert title(chart).startswith("── throughput, steps/s, whole run")
        await pilot.press("b", "end")
        assert "1 steps/s" in title(chart)
        await pilot.press("escape", "M")
        assert title(chart).startswith("── loss, whole run, by step")

    async def test_m_continues_to_the_jobs_metrics(self, pilot: Pilot[None]) -> None:
        chart = both_of(pilot).loss
        chart.show_job(msgspec.structs.replace(losses(), scalars={"lr": points(3.0)}), rank=1)
        await pilot.press("a", "a", "M", "M")
        assert title(chart).startswith("── lr, whole run ──")
        await pilot.press("b", "end")
        assert "lr 3.00" in title(chart)
        chart.show_job(losses())
        assert "no lr yet" in text(chart), "it stays chosen: the next attempt may report it"
        await pilot.press("escape", "M")
        assert title(chart).startswith("── loss, whole run, by step")
        chart.show_as("lr")
        chart.show_job(losses(), job="another")
        assert title(chart).startswith("── loss for another")

    async def test_the_validation_loss_lies_on_the_loss(self, pilot: Pilot[None]) -> None:
        chart = both_of(pilot).loss
        rare = [float(t) for t in range(50, LENGTH, 300)]
        high = [6.0 - t / LENGTH for t in rare]
        validation = Points(rare, high, high, high, step=[int(t) for t in rare], attempt=[0] * 4)
        data = msgspec.structs.replace(
            losses(), scalars={"lr": points(90.0), "val_loss": validation}
        )
        chart.show_job(data)
        assert text(chart).count("val_loss") == 2, "in the legend, and at its end"
        assert text(chart).count("median") == 2
        assert "8 ┤" not in text(chart), "and lr is no loss"
        await pilot.press("end", "left")
        assert "val_loss 5.05" in title(chart)
        await pilot.press("b")
        assert "val_loss" in text(chart)

    async def test_each_validation_loss_is_drawn_once(self, pilot: Pilot[None]) -> None:
        chart = both_of(pilot).loss

        def scalar(value: float) -> Points:
            rare = [float(t) for t in range(50, LENGTH, 300)]
            values = [value - t / LENGTH for t in rare]
            return Points(rare, values, values, values)

        scalars = {"val_loss": scalar(6.0), "eval/loss": scalar(5.0), "val_acc": scalar(9.0)}
        data = msgspec.structs.replace(losses(), scalars=scalars)
        chart.show_job(data)
        shown = title(chart)
        assert re.search("━ median [\\d.]+  ● val_loss [\\d.]+  ● eval/loss [\\d.]+", shown)
        assert text(chart).count("eval/loss") == 2, "in the legend, and at its end"
        assert "9 ┤" not in text(chart)
        await pilot.press("end", "left")
        assert "eval/loss 4.05" in plain(chart.build(150, 20)[0])

    async def test_zooming_asks_for_more_exact_figures(self, pilot: Pilot[None]) -> None:
        both = both_of(pilot)
        before = both.asked
        await pilot.press("plus")
        assert (both.needs().chart.span, both.needs().chart.right) == (600, None)
        assert both.asked == before + 1
        assert "last 10m" in title(both.loss)
        await pilot.press("shift+left")
        assert both.needs().chart.right == pytest.approx(850, abs=5)
        assert title(both.loss).startswith("── loss, 10m, smoothing")
        await pilot.press("0")
        assert both.needs().chart == ChartQuery()

    async def test_the_cursor_reads_values_and_esc_takes_it_away(self, pilot: Pilot[None]) -> None:
        both = both_of(pilot)
        asked = both.asked
        await pilot.press("right", "shift+right")
        assert both.asked == asked, "what is read stays the same"
        area = both.loss.area
        assert area is not None
        assert area.cell(both.loss.view.cursor or 0) == 10
        assert "in  median" in title(both.loss)
        assert "memory" in title(both.figures)
        await pilot.press("end")
        assert area.cell(both.loss.view.cursor or 0) == area.cells - 1
        await pilot.press("home")
        assert area.cell(both.loss.view.cursor or -1) == 0
        await pilot.press("escape")
        assert both.loss.view.cursor is both.figures.view.cursor is None
        assert pilot.app.screen is both, "esc took the cursor, not the screen"
        await pilot.press("escape")
        assert pilot.app.screen is not both

    async def test_b_changes_to_steps_and_leaves_charts_by_time(self, pilot: Pilot[None]) -> None:
        both = both_of(pilot)
        await pilot.press("b")
        assert "by step" in title(both.loss)
        assert both.figures.view.axis == "time"
        await pilot.press("plus", "plus")
        assert both.loss.view.span == 200
        assert both.figures.view == View(), "all that is read: the time of those steps"
        assert both.needs().chart == ChartQuery(axis="step", span=200.0)
        await pilot.press("left")
        assert "step 9" in title(both.loss)
        both.figures.focus()
        await pilot.press("left")
        assert both.loss.view.axis == "step", "it is not taken from its axis"
        both.loss.focus()
        await pilot.press("b")
        assert both.loss.view == View()

    async def test_b_without_steps_explains_why(self, pilot: Pilot[None]) -> None:
        both = both_of(pilot)
        both.loss.show_job(losses(steps=False))
        await pilot.press("b")
        (note,) = pilot.app._notifications
        assert note.message == "by step: n/a (step numbers are unknown for these losses)"
        assert both.loss.view.axis == "time"


class TestMouse:
    async def test_a_click_puts_the_cursor(self, pilot: Pilot[None]) -> None:
        both = both_of(pilot)
        area = both.loss.area
        assert area is not None
        await pilot.click(LossChart, offset=(area.left + 40, 5))
        assert area.cell(both.loss.view.cursor or 0) == 40
        assert both.loss.has_focus
        await pilot.click(LossChart, offset=(2, 5))
        assert area.cell(both.loss.view.cursor or 0) == 40, "left of the plot is nothing to read"

    async def test_the_cursor_follows_a_drag_at_most_to_the_edges(self, pilot: Pilot[None]) -> None:
        both = both_of(pilot)
        area = both.loss.area
        assert area is not None

        async def mouse(event: type[events.MouseEvent], cell: int) -> int:
            await pilot._post_mouse_events(
                [event], LossChart, offset=(area.left + cell, 5), button=1
            )
            return area.cell(both.loss.view.cursor or 0)

        assert await mouse(events.MouseDown, 40) == 40
        assert await mouse(events.MouseMove, 33) == 33
        assert await mouse(events.MouseMove, -6) == 0
        assert await mouse(events.MouseMove, 12) == 12
        await mouse(events.MouseUp, 12)
        assert await mouse(events.MouseMove, 20) == 12, "let go"

    async def test_the_wheel_zooms_at_the_pointer(self, pilot: Pilot[None]) -> None:
        both = both_of(pilot)
        area = both.loss.area
        assert area is not None
        at = area.at(30)
        await pilot._post_mouse_events(
            [events.MouseScrollUp],
            LossChart,
            offset=(area.left + 30, 5),
            button=0,
        )
        assert both.loss.view.span == 600
        assert both.loss.area is not None
        assert both.loss.area.cell(at) == 30

    async def test_one_that_is_only_glanced_at_takes_nothing(self) -> None:
        chart = LossChart(glance=True)

        class One(App[None]):
            def compose(self) -> ComposeResult:
                yield chart

        async with One().run_test(size=(90, 12)) as pilot:
            chart.show_job(losses())
            await pilot.click(LossChart, offset=(40, 5))
            assert chart.area is not None
            assert chart.view == View()
            assert not chart.has_focus

    async def test_another_job_begins_with_its_whole_run(self, pilot: Pilot[None]) -> None:
        chart = both_of(pilot).loss
        chart.show_job(losses(), job="a")
        await pilot.press("plus", "left")
        assert chart.view.span is not None
        chart.show_job(losses(), job="b")
        assert chart.view == View()


class TestDrawing:
    async def test_the_same_data_are_not_drawn_again(self, pilot: Pilot[None]) -> None:
        chart = both_of(pilot).loss
        built: list[int] = []
        real = chart.build

        def counted(width: int, height: int):
            built.append(width)
            return real(width, height)

        chart.build = counted  # type: ignore[method-assign]
        data = losses()
        for _ in range(3):
            chart.show_job(data, rank=1)
        assert len(built) == 1
        chart.show_job(data, rank=0)
        assert len(built) == 2


def test_a_loss_that_falls_by_decades_is_smoothed_on_its_own_axis() -> None:
    t = [float(second) for second in range(LENGTH)]
    values = [10.0 ** (-second / 100) for second in t]
    data = ChartData(middle=Points(t, values, values, values), since=0.0, until=float(LENGTH))
    options = ChartOptions(logarithmic=True, smoothing=0.97, view=View(cursor=500.0))
    chart = draw_curves(curves_of(data, options), options, 200, 20)
    assert chart.reading is not None
    shown = plain(chart.reading.line(80))
    smooth = float(shown.split("loss ")[1].split()[0])
    assert smooth < 20 * 10.0**-5, "a mean of the values lies near the first of them"
