"""What becomes of tables: text, Markdown, JSON and pictures; what they were taken on; progress."""
