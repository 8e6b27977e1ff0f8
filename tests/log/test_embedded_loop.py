"""The engine beside an event loop: nothing that is asked of it on the loop waits for a disk there."""

import asyncio
from pathlib import Path

import pytest
from kit.engines import batch
from kit.faulty_files import CallKind, FaultyFiles
from kit.records import Row, build

from penstock.log.embedded import EmbeddedEngine
from penstock.log.partitions.cleaner import compact, merge_small_batches
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles


async def opened(directory: Path, files: FaultyFiles) -> EmbeddedEngine:
    """With the topics `a` and `b`, a few records in each."""
    loop = asyncio.get_running_loop()
    engine = await asyncio.to_thread(
        EmbeddedEngine, str(directory / "data"), post=loop.call_soon_threadsafe, files=files
    )
    for name in ("a", "b"):
        engine.create_topic(name, 3, TopicSettings(cleanup="compact", segment_bytes=4096))
        for partition in range(3):
            for _ in range(20):
                await engine.append(name, partition, build([Row(b"x" * 400, 5, b"key")]))
    return engine


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("remove_tree", "a"), ("sync_directory", "topics"), ("sync", ".log")],
    ids=["files", "directory", "flush"],
)
def test_a_deletion_leaves_the_loop_to_others(
    tmp_path: Path, kind: CallKind, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While the disk removes the files of a topic, or still flushes it, others are answered."""
    files = FaultyFiles(RealFiles())

    async def body() -> None:
        engine = await opened(tmp_path, files)
        with files.pause(kind, suffix=suffix) as pause:
            late = engine.append("a", 0, batch(b"late")) if kind == "sync" else None
            if late is not None:
                await asyncio.to_thread(pause.wait_until_reached)
            deleted = asyncio.Event()
            engine.delete_topic("a").on_done(lambda _: deleted.set())
            await deleted.wait()
            await asyncio.to_thread(pause.wait_until_reached)
            assert [info.name for info in engine.topics()] == ["b"]
            assert await engine.append("b", 1, batch(b"answered")) == 20
        assert late is None or await late == 20
        await asyncio.to_thread(engine.close)

    asyncio.run(body())
    assert "PauseTimeout" not in caplog.text, "the loop itself stood in the paused call"


@pytest.mark.parametrize("cleaning", ["compaction", "merge"])
@pytest.mark.parametrize("kind", ["sync_directory", "rename"])
def test_appends_do_not_wait_for_the_cleaner(tmp_path: Path, kind: CallKind, cleaning: str) -> None:
    """While it puts a segment in place and flushes the directory, the same partition takes records, and
    others are answered."""
    files = FaultyFiles(RealFiles())

    async def body() -> None:
        engine = await opened(tmp_path, files)
        partition = engine.catalogue.partition("a", 0)
        with files.pause(kind) as pause:
            if cleaning == "compaction":
                cleaned = asyncio.to_thread(lambda: compact(partition, 0)[0])
            else:
                cleaned = asyncio.to_thread(lambda: merge_small_batches(partition))
            task = asyncio.create_task(cleaned)
            await asyncio.to_thread(pause.wait_until_reached)
            token = engine.append("a", 0, build([Row(b"meanwhile", 5, b"other")]))
            assert await engine.append("b", 0, batch(b"answered")) == 20
        assert (await task).segments > 0
        assert await token == 20
        await asyncio.to_thread(engine.close)

    asyncio.run(body())
