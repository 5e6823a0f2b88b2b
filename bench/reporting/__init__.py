"""Reports: tables as text, Markdown, JSON and pictures; the environment of the figures; progress."""
