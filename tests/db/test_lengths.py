"""Mean generation lengths against numbers worked out by hand."""

from db.lengths import GenerationLength, generation_lengths


def test_lengths_by_hand(writer, make_sample, make_cell):
    def cell(name, policy, most, **changes):
        return make_cell(name, policy=policy, config={"sampling": {"max_new_tokens": most}}, **changes)

    cells = [
        cell("c1", "full", 512),
        cell("c2", "full", 512, protocol="p2"),
        cell("c3", "full", 64),
        cell("c4", "h2o", 64),
    ]
    writer.register_sweep("t", "t", {}, {}, [*cells, make_cell("c5")])
    writer.record([make_sample("c1", problem=str(i), output_tokens=100 + i) for i in range(3)])
    writer.record([make_sample("c2", output_tokens=501), make_sample("c2", problem="2", outcome="failed")])
    writer.record([make_sample("c3", output_tokens=64), make_sample("c5", output_tokens=3)])
    assert generation_lengths(writer.engine) == [
        GenerationLength("m", "bench", "full", 64, 1, 64.0),
        GenerationLength("m", "bench", "full", 512, 4, (100 + 101 + 102 + 501) / 4),
    ]


def test_an_empty_database_knows_none(writer):
    assert generation_lengths(writer.engine) == []
