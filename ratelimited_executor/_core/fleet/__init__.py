"""One rate over many peers: the numbered permits, who is granted which, and what a peer makes of it. No I/O."""
