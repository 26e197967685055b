"""What a row is after a trip through the file."""

import contextlib
import json
import math
import struct
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stethoscope.kernels.columns import INDEX, NUM_COLUMNS, NUM_COUNTS
from stethoscope.store import encoding, frames, scalars_payload
from stethoscope.store.frames import FrameKind
from stethoscope.store.json_payload import EncodingError
from stethoscope.store.queue import MOST_STEPS, Item, joined

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True, width=64, allow_subnormal=True)
NUM_ROWS = st.integers(0, 40)


@st.composite
def tables(draw):
    n = draw(NUM_ROWS)
    table = draw(hnp.arrays(np.float64, (n, NUM_COLUMNS), elements=ANY_FLOAT))
    counts = st.one_of(st.integers(0, 255), st.integers(0, 2**53)).map(float)
    table[:, :NUM_COUNTS] = draw(hnp.arrays(np.float64, (n, NUM_COUNTS), elements=counts))
    if n and draw(st.booleans()):
        table[:, INDEX["abs_max"]] = np.maximum(abs(table[:, INDEX["min"]]), abs(table[:, INDEX["max"]]))
    for place in draw(st.sets(st.integers(0, NUM_COLUMNS - 1))):
        table[:, place] = table[0, place] if n else 0.0
    return table


@settings(max_examples=400, deadline=None)
@given(tables(), st.booleans(), st.data())
def test_round_trip_of_any_table(table, contiguous, data):
    n = len(table)
    if contiguous:
        index = np.arange(5, 5 + n, dtype=np.uint32)
    else:
        index = data.draw(hnp.arrays(np.uint32, n, elements=st.integers(0, 2**32 - 1)))
    calls = data.draw(st.none() | hnp.arrays(np.uint32, n, elements=st.integers(0, 2**32 - 1)))
    rows = encoding.decode_rows(encoding.encode_rows(index, table, calls))
    back = rows.table()
    np.testing.assert_array_equal(rows.index, index)
    np.testing.assert_array_equal(rows.calls, np.ones(n) if calls is None else calls)
    np.testing.assert_array_equal(back[:, :NUM_COUNTS], table[:, :NUM_COUNTS])
    mean = INDEX["mean"]
    same = (back[:, mean] == table[:, mean]) | (np.isnan(back[:, mean]) & np.isnan(table[:, mean]))
    assert same.all()
    np.testing.assert_array_equal(np.isnan(back), np.isnan(table))
    np.testing.assert_array_equal(np.isinf(back), np.isinf(table))
    finite = np.isfinite(table)
    assert (np.signbit(back) == np.signbit(table))[~np.isnan(table)].all()
    with np.errstate(over="ignore"):
        tolerance = np.maximum(abs(table[finite]) * 2.0**-24, 5e-324 * 2**29)
    assert (abs(back[finite] - table[finite]) <= tolerance).all()


def test_what_a_writer_stores_is_what_stored_floats_says():
    rng = np.random.default_rng(3)
    table = rng.normal(size=(50, NUM_COLUMNS)) * 10.0 ** rng.integers(-300, 300, (50, NUM_COLUMNS))
    table[:, :NUM_COUNTS] = rng.integers(0, 9, (50, NUM_COUNTS))
    back = encoding.decode_rows(encoding.encode_rows(np.arange(50, dtype=np.uint32), table)).table()
    np.testing.assert_array_equal(back, encoding.stored_floats(table))


def test_abs_max_is_stored_where_it_does_not_follow_from_min_and_max():
    table = np.zeros((2, NUM_COLUMNS))
    table[1, INDEX["abs_max"]] = 2.0606069e-110  # float32 would make it the zero that min and max are
    back = encoding.decode_rows(encoding.encode_rows(np.arange(2, dtype=np.uint32), table)).table()
    assert back[1, INDEX["abs_max"]] == pytest.approx(2.0606069e-110, rel=2**-24)


def test_counts_that_are_no_whole_numbers_are_kept_as_they_are():
    table = np.zeros((3, NUM_COLUMNS))
    table[:, 0] = [1.5, -2.0, math.nan]
    back = encoding.decode_rows(encoding.encode_rows(np.arange(3, dtype=np.uint32), table)).table()
    np.testing.assert_array_equal(back[:, 0], table[:, 0])


NAMED = st.dictionaries(st.text(max_size=40), ANY_FLOAT, max_size=10)
STEPS = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(st.lists(st.tuples(STEPS, NAMED), max_size=6))
def test_round_trip_of_scalars(told):
    back = scalars_payload.decode_scalars(scalars_payload.encode_scalars(told))
    found = [(step, back.names[code]) for step, code in zip(back.steps.tolist(), back.codes.tolist(), strict=True)]
    assert found == [(step, name) for step, values in told for name in values]
    np.testing.assert_array_equal(back.values, [value for _, values in told for value in values.values()])


@settings(deadline=None)
@given(st.lists(st.tuples(STEPS, NAMED), max_size=6))
def test_scalars_by_name_keep_their_order(told):
    names = list(dict.fromkeys(name for _, values in told for name in values))
    back = scalars_payload.decode_scalars(scalars_payload.encode_scalars(told))
    found = {name: (steps.tolist(), values) for name, steps, values in back.by_name()}
    assert list(found) == names
    for name in names:
        mine = [(step, values[name]) for step, values in told if name in values]
        assert found[name][0] == [step for step, _ in mine]
        np.testing.assert_array_equal(found[name][1], [value for _, value in mine])


@settings(deadline=None)
@given(st.lists(st.sampled_from([FrameKind.SCALARS, FrameKind.ROWS, FrameKind.EVENT]), max_size=200))
@example([FrameKind.SCALARS] * 200)
def test_scalars_share_frames_of_a_few_steps_and_none_comes_later(kinds):
    items = [Item(kind, step, 0.0, [(step, {"loss": 1.0})], 1) for step, kind in enumerate(kinds)]
    found = joined(items)
    told = [one.content for one in found if one.kind == FrameKind.SCALARS]
    assert all(len(content) <= MOST_STEPS for content in told)
    assert [step for content in told for step, _ in content] == [
        n for n, k in enumerate(kinds) if k == FrameKind.SCALARS
    ]
    others = [one.step for one in found if one.kind != FrameKind.SCALARS]
    assert others == [n for n, kind in enumerate(kinds) if kind != FrameKind.SCALARS]
    seen = set()
    for one in found:
        if one.kind == FrameKind.SCALARS:
            seen.update(step for step, _ in one.content)
        else:
            assert {n for n in range(one.step) if kinds[n] == FrameKind.SCALARS} <= seen


@settings(deadline=None)
@given(NAMED, STEPS)
def test_scalars_as_format_1_wrote_them_are_read(values, step):
    names = json.dumps(list(values)).encode()
    raw = struct.pack("<II", len(values), len(names)) + names + np.array(list(values.values()), "<f8").tobytes()
    back = scalars_payload.decode_scalars_of_step(raw, step)
    assert back.names == list(values)
    assert back.steps.tolist() == [step] * len(values)
    np.testing.assert_array_equal(back.values, list(values.values()))


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "i4", "u8", "f2", "f4", "f8", ">f4"])
def test_round_trip_of_vectors(dtype):
    values = (np.arange(30).reshape(6, 5) * 3).astype(dtype)
    index = np.array([4, 2, 9, 1, 0, 7], np.uint32)
    name, places, back = encoding.decode_vectors(encoding.encode_vectors("größe\0", index, values))
    assert name == "größe\0"
    np.testing.assert_array_equal(places, index)
    np.testing.assert_array_equal(back, values)


def test_vectors_of_objects_are_refused():
    with pytest.raises(EncodingError, match="dtype"):
        encoding.encode_vectors("x", np.zeros(1, np.uint32), np.array([["a"]], object))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_a_decoder_do_anything_but_refuse(raw):
    def decode_old(raw):
        return scalars_payload.decode_scalars_of_step(raw, 3)

    for decode in (encoding.decode_rows, scalars_payload.decode_scalars, decode_old, encoding.decode_vectors):
        with contextlib.suppress(EncodingError):
            assert decode(raw) is not None


def test_a_payload_over_the_limit_is_refused_before_anything_is_allocated():
    frame = frames.build(frames.FrameKind.EVENT, 0, 0.0, b"x" * 10)
    good = bytearray(frame.pack(b"12345678", 0))
    fields = frames._FIELDS
    values = list(fields.unpack_from(good))
    for place in (9, 10):
        forged = list(values)
        forged[place] = 2**63
        head = fields.pack(*forged)
        with pytest.raises(frames.FrameError, match="over the limit"):
            frames.read_header(head + frames.checksum(head) + b"x" * 10)


def test_a_compressed_payload_that_claims_another_size_is_refused():
    import zstandard

    packed = zstandard.compress(b"a" * 10_000)
    header = frames.Header(6, True, b"1" * 8, 0, 0, 0, 0.0, len(packed), 100, frames.checksum(packed))
    with pytest.raises(frames.FrameError, match="size"):
        frames.unpack(header, packed)


def test_the_largest_size_stands_behind_what_it_follows_from() -> None:
    """In every file, whatever columns are added: readers take the two before it."""
    assert [INDEX[name] - INDEX["abs_max"] for name in ("min", "max")] == [-2, -1]


def test_a_signalling_nan_is_read_without_a_warning():
    """Fuzzing made one: NumPy warns where it widens it, and a user's filter may make an error of that."""
    raw = encoding.shuffle(np.array([0x7F800001, 0x3F800000], "<u4").view("<f4"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = encoding._decode_column(raw, encoding._F32, 0, 2)
    assert np.isnan(found[0])
    assert found[1] == 1.0
