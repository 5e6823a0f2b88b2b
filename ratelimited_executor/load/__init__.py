"""Measuring a service with an open load: when requests are due, what is recorded of them, and what follows from it.

Everything here is pure: times, random numbers and input are handed in. The command ``bench`` is the shell around it. The
extra ``load`` brings ``hdrhistogram``, which is imported on first use.
"""
