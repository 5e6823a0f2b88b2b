"""Peers: ways in which processes share the rates of their executors, a module for each.

===========  ==================================  ================================================================
module       a permit of the rate belongs to     it needs
===========  ==================================  ================================================================
``static``   the peer whose rank is its number   as many peers as was said, each with a rank of its own; no I/O
             modulo the number of peers
``redis``    the peer to which the authority     a Redis that all reach; peers come and go, and get what they need
             has granted it
===========  ==================================  ================================================================

``fleet`` is the part of ``redis`` that knows nothing of Redis. Nothing is imported here, as most programs have no peers.
"""
