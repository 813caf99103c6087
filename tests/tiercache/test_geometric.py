"""LagKV, KeyDiff, Expected Attention and TriAttention against loops over numpy arrays."""

from geometric_reference import expected, keydiff, lagkv, own_centres, scorer_of, triattention, view_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache.scorers import View

# Random views -------------------------------------------------------------------------------------------------------


@st.composite
def shapes(draw):  # type: ignore[no-untyped-def]
    return {
        "layers": draw(st.integers(1, 3)),
        "rows": draw(st.integers(1, 3)),
        "heads": draw(st.integers(1, 3)),
        "group": draw(st.integers(1, 3)),
        "slots": draw(st.integers(2, 14)),
        "pairs": draw(st.integers(1, 4)),
        "queries": draw(st.integers(1, 6)),
        "seed": draw(st.integers(0, 2**31)),
        "coarse": draw(st.booleans()),  # few distinct values: ties and constant channels
        "sinks": draw(st.integers(0, 3)),
    }


def places_of(view):  # type: ignore[no-untyped-def]
    layers, rows, heads, _ = view.pos.shape
    return [(layer, row, head) for layer in range(layers) for row in range(rows) for head in range(heads)]


def close(got, want):  # type: ignore[no-untyped-def]
    assert abs(float(got) - want) <= 1e-8 * max(1.0, abs(want)), (float(got), want)


@settings(max_examples=120, deadline=None)
@given(shapes(), st.sampled_from([0.0, 1.0, 2.5]), st.integers(1, 5))
def test_lagkv_is_the_papers_formula(shape, weight, most) -> None:  # type: ignore[no-untyped-def]
    view, facts = view_of(shape)
    chunk = view.candidate & (view.candidate.cumsum(-1) <= most)  # so that more or less than as many follow
    view = View(**{**vars(view), "may_move": chunk})
    score = scorer_of("lagkv", facts, value_weight=weight).score(view)
    assert score.isfinite().all()
    for place in places_of(view):
        live = (view.pos[place] >= 0).nonzero().flatten()
        chunk = [i for i in live.tolist() if view.candidate[place][i]]
        if not chunk:
            assert (score[place] == 0).all()
            continue
        want = lagkv(view.keys[place][live].numpy(), view.values[place][live].numpy(), chunk, weight)
        for i in chunk:
            close(score[place][i], want[i])


@settings(max_examples=120, deadline=None)
@given(shapes())
def test_keydiff_is_the_papers_formula(shape) -> None:  # type: ignore[no-untyped-def]
    view, facts = view_of(shape, ordered=False)
    score = scorer_of("keydiff", facts).score(view)
    assert score.isfinite().all()
    for place in places_of(view):
        live = (view.pos[place] >= 0).nonzero().flatten()
        want = keydiff(view.keys[place][live].numpy())
        for rank, slot in enumerate(live.tolist() if want else []):
            close(score[place][slot], want[rank])


def queries_of(view, place, group):  # type: ignore[no-untyped-def]
    layer, row, head = place
    known = [(j, p) for j, p in enumerate(view.query_pos[row].tolist()) if p >= 0]
    heads = range(head * group, (head + 1) * group)
    return [[(view.queries[layer, row, h, j].numpy(), p) for j, p in known] for h in heads]


@settings(max_examples=120, deadline=None)
@given(shapes(), st.sampled_from([1, 7, 512]), st.sampled_from([0.0, 0.02]))
def test_expected_attention_is_the_papers_formula(shape, future, epsilon) -> None:  # type: ignore[no-untyped-def]
    view, facts = view_of(shape, ordered=False)
    scorer = scorer_of("expected", facts, queries=shape["queries"], future=future, epsilon=epsilon)
    score = scorer.score(view)
    assert score.isfinite().all()
    frequencies = facts.rope.frequencies.tolist()
    for place in places_of(view):
        among = view.candidate[place].nonzero().flatten().tolist()
        if among:
            queries, seen = queries_of(view, place, shape["group"]), int(view.seen[place[1]])
            keys, values = view.keys[place].numpy(), view.values[place].numpy()
            want = expected(keys, values, queries, seen, frequencies, among, future, epsilon)
            for i in among:
                close(score[place][i], want[i])


@settings(max_examples=120, deadline=None)
@given(shapes(), st.sampled_from([1, 3, 64, 65536]), st.sampled_from(["head", "layer", "token"]))
def test_triattention_is_the_papers_formula(shape, future, scope) -> None:  # type: ignore[no-untyped-def]
    view, facts = view_of(shape, ordered=False)
    if scope != "head":  # then slots hold the same tokens in all heads
        same = {name: getattr(view, name)[:1, :, :1].expand_as(view.pos).clone() for name in ("pos", "may_move")}
        view = View(**{**vars(view), **same})
    scorer = scorer_of("triattention", facts, queries=shape["queries"], future=future, scope=scope)
    score = scorer.score(view).expand(view.pos.shape)
    assert score.isfinite().all()
    frequencies = facts.rope.frequencies.tolist()
    want = {}
    for place in places_of(view):
        among = view.candidate[place].nonzero().flatten().tolist()
        centres, seen = own_centres(queries_of(view, place, shape["group"]), frequencies), int(view.seen[place[1]])
        want[place] = triattention(
            view.keys[place].numpy(), view.pos[place].tolist(), centres, seen, frequencies, among, future
        )
    for layer, row, head in want:
        rivals = {
            "head": [(layer, row, head)],
            "layer": [p for p in want if p[:2] == (layer, row)],
            "token": [p for p in want if p[1] == row],
        }[scope]
        for i in view.candidate[layer, row, head].nonzero().flatten().tolist():
            # A head whose candidates score alike divides rounding errors by the floor of the deviation.
            got, best = float(score[layer, row, head, i]), max(want[p][i] for p in rivals)
            assert got == best or abs(abs(got - best) - 2**-14) < 1e-12, (got, best)  # a step where it is half a step
