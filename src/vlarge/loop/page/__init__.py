"""What a report page is made of: markup, charts, words, and the sections put together from them."""
