"""One rate over many peers: numbered permits, how they are granted, and how a peer uses them. No I/O."""
