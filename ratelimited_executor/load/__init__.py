"""Measure a service with an open load: due times of requests, recording, figures and verdicts.

Everything here is pure: times, random numbers and input are arguments. The command ``bench`` is the shell around it.
The extra ``load`` installs ``hdrhistogram``, which is imported on first use.
"""
