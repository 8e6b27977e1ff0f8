"""One update, streams that go on, and who looks on: what penstock pipeline run does."""
