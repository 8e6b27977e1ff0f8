"""Felix on the wire: frames, JSON messages in two sets, binary batches."""
