"""The matrix: which feature of attention works in which implementation, from runs of the suite.

    columns (runs in a folder) -> table (rows of `variants`) -> page (HTML), exports (Markdown, JSON, JUnit)
"""
