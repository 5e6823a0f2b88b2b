"""The command line: ``run`` a bulk job under a rate, ``demo`` the product on real parts, watch ``peers`` share a rate.

``main`` guards the optional dependencies, ``commands`` parses; every other module holds one concern and does not know
click. Nothing outside this package imports it.
"""
