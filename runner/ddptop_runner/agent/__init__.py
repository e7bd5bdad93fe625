"""The agent: torch elastic's LocalElasticAgent under the job's own Python.

It is run by path (`__main__.py`), so that the job's interpreter needs nothing from ddptop: standard
library and torch only, Python 3.8 syntax. It decides nothing: it asks the supervisor before each
restart.
"""
