"""One rate over many peers: numbered permits, their granting, and their use by a peer. No I/O."""
