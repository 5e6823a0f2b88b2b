"""The command line: ``run`` a bulk job under a rate, ``demo`` the product, ``bench`` a service, watch ``peers``.

``main`` checks the optional dependencies, and ``commands`` parses. The other packages carry out the commands, and do
not use click; the modules beside them are what several commands share. Nothing outside this package imports it.
"""
