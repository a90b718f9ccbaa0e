"""Lanes that are compressed again, as a client fetches them."""

from __future__ import annotations

import pytest

from keylane.wire.batch import CODEC_LZ4, CODEC_ZSTD
from tests.reference.broker_log import BrokerLog
from tests.reference.lane_bench import A, B, Bench
from tests.virtual_time import run_virtual


@pytest.mark.parametrize("codec", [CODEC_LZ4, CODEC_ZSTD])
def test_compressed_lanes_are_counted_as_they_are_sent(codec: int) -> None:
    """The cache has the bytes of the compressed batches; a fetch of plain ones has a reader."""

    async def main() -> None:
        log = BrokerLog()
        log.append(*[(key, b"v" * 10_000) for key in (A, B, A, B)])
        bench = Bench(log)

        first = await bench.fetch_one(0, 0, codec=codec)
        kept = bench.fetcher.cache.bytes_used
        second = await bench.fetch_one(1, 0, cursor="m2", codec=codec)
        plain = await bench.fetch_one(1, 0, cursor="m3")

        assert first.size_bytes == sum(map(len, first.records)) < 500
        assert second.size_bytes < kept < 3_000 and plain.size_bytes > 20_000
        assert [answer.records[0][22] & 7 for answer in (first, second, plain)] == [codec, codec, 0]
        assert len(log.fetches) == 2

    run_virtual(main)
