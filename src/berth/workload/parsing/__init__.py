"""From bytes to checked columns, whatever the format: sources, rows, numbers, and the book of bad_rows."""
