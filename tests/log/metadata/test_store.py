"""Named records in SQLite: the suite of all engines."""

from pathlib import Path

import pytest
from kit.metadata_suite import ClosableMetadata, MetadataSuite, Opening

from penstock.log.callbacks import Post
from penstock.log.metadata.store import MetadataStore


class TestMetadataStore(MetadataSuite):
    @pytest.fixture
    def opening(self, tmp_path: Path) -> Opening:
        path = str(tmp_path / "metadata.db")

        def open_it(post: Post | None, max_queued: int | None = None) -> ClosableMetadata:
            return MetadataStore(path, post=post, max_queued=max_queued)

        return open_it
