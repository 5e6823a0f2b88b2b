"""The command line: ``run`` a bulk job under a rate, ``demo`` the product, ``bench`` a service, watch ``peers``.

``main`` guards the optional dependencies, ``commands`` parses; every other module holds one concern and does not know
click. Nothing outside this package imports it.
"""
