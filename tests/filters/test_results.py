"""Results are the same whatever runs where."""


import pytest
import shunt.filters as sf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness.ether import PATIENCE
from harness.filters import Line, Numbers, Sum
from harness.groups import row


@st.composite
def graphs(draw, most=7, most_copies=8):
    """Filters 0 to n-1, with streams from lower to higher numbers: (what each makes of numbers, streams, copies, units of work)."""
    n = draw(st.integers(2, most))
    streams = set()
    for to in range(1, n):
        # Some have no input: they are sources as well.
        for from_ in draw(st.sets(st.integers(0, to - 1), max_size=3)):
            streams.add((from_, to))
    streams.add((0, n - 1))
    copies = [draw(st.integers(1, most_copies)) for _ in range(n)]
    lines = [(draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40))) for _ in range(n)]
    options = {}
    for stream in sorted(streams):
        policy = draw(st.sampled_from(["round-robin", "demand-driven", "weighted", "keyed"]))
        weights = draw(st.lists(st.integers(0, 5), min_size=copies[stream[1]], max_size=copies[stream[1]])) if policy == "weighted" else []
        if weights and not any(weights):
            weights[0] = 1
        options[stream] = {"policy": policy, "weights": weights, "credits": draw(st.integers(1, 8)), "buffer_size": draw(st.sampled_from([8, 64, 5000]))}
    return lines, options, copies, draw(st.lists(st.integers(0, 40), min_size=1, max_size=3))


def sinks_of(graph):
    lines, streams, _, _ = graph
    return [at for at in range(len(lines)) if any(to == at for _, to in streams) and not any(from_ == at for from_, _ in streams)]


def laid_out(graph):
    lines, streams, copies, _ = graph
    layout = sf.Layout()
    sinks = sinks_of(graph)
    for at, line in enumerate(lines):
        if at in sinks:
            layout.filter(f"f{at}", Sum)
        elif any(to == at for _, to in streams):
            layout.filter(f"f{at}", Line, *line)
        else:
            layout.filter(f"f{at}", Numbers)
    for (from_, to), options in streams.items():
        layout.stream(f"f{from_}", f"f{to}", **options)
    return layout


def computed(graph, numbers):
    """What comes to the sinks, in one line of plain Python after the other."""
    lines, streams, _, _ = graph
    values = {}
    for at, (times, more) in enumerate(lines):
        inputs = [from_ for from_, to in streams if to == at]
        came = [value for from_ in inputs for value in values[from_]]
        sink = at in sinks_of(graph)
        values[at] = (came if sink else [(value * times + more) % 2**64 for value in came]) if inputs else list(range(numbers))
    return {f"f{at}": (sum(values[at]) % 2**64, len(values[at])) for at in sinks_of(graph)}


def check(graph, launcher, processes=False, **start):
    lines, _, copies, work = graph
    placement = {f"f{at}": sf.Place(copies=copies[at], processes=processes) for at in range(len(lines))}
    with laid_out(graph).start(placement, launcher=launcher, **start) as group:
        for numbers, unit in [(numbers, group.append(numbers)) for numbers in work]:
            got = {}
            for name, total, count in unit.result(60 * PATIENCE):
                before = got.get(name, (0, 0))
                got[name] = (before[0] + total) % 2**64, before[1] + count
            assert got == computed(graph, numbers)


def graph_test(examples):
    return lambda test: settings(max_examples=examples, deadline=None, database=None, derandomize=True, print_blob=False,
                                 suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate))(test)


@graph_test(60)
@given(graph=graphs())
def test_random_graphs_in_threads(graph):
    check(graph, "local")


@pytest.mark.parametrize("transport", ["auto", "shunt", "tcp"])
def test_random_graphs_in_processes(transport):
    @graph_test(6)
    @given(graph=graphs(4, 2))
    def run(graph):
        check(graph, "local", processes=True, transport=transport)

    run()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_random_graphs_on_dask(cluster, transport):
    @graph_test(8)
    @given(graph=graphs())
    def run(graph):
        check(graph, cluster, transport=transport)

    run()


@pytest.mark.parametrize("policy", ["round-robin", "demand-driven"])
def test_one_to_eight_copies_give_the_same(launcher, policy):
    expected = sum(value * 3 + 1 for value in range(200)), 200
    for copies in range(1, 9):
        layout = row(policy, numbers=Numbers, line=(Line, 3, 1), sum=Sum)
        with layout.start(copies={"numbers": copies, "line": copies}, launcher=launcher) as group:
            [(_, *got)] = group.append(200).result(30 * PATIENCE)
            assert tuple(got) == expected
