"""Trials that attack the package: random instances, properties, and truth from elsewhere.

``python -m bench run soak --minutes N`` runs them all (:mod:`bench.cases.soak`); ``python -m bench.soak TRIAL SEED`` repeats one, and
``python -m bench.soak`` lists them.  Each file holds the trials of a family.  They use the public interface only.
"""
