"""Is an experiment worth running, and may its numbers be believed? What data and configuration say before training.

In the order of reading: ``section``; ``judgements``, ``cutting``, ``power``; ``word_sets``, ``parity``,
``near``, ``leakage``, ``leakage_section``, ``trained_on``, ``clean``; ``forecast``, ``sample``,
``kept_forecast``; ``report_formats``. Sections are made of :class:`ltr.compare.tables.Table`, and
``power`` of :mod:`ltr.compare.statistics`.
"""
