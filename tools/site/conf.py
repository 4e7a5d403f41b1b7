# The manual as a static site: `make site`. Nothing of it is loaded from elsewhere.
project = "Weir"
html_title = "Weir"
extensions = ["myst_parser"]
myst_heading_anchors = 6  # the anchors that links to headings have on GitHub
html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# Snippets are shortened, and some languages have no lexer.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"
