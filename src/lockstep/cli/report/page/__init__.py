"""`lockstep report --html`: runs as one self-contained web page.

`load.py` reads and down-samples runs, `groups.py` groups them over seeds, `chart.py` draws SVG. `page.py` fills in
`page.html.j2`, which `style.css` and `page.js` are written into. It has sections from `run_tables.py` (settings, runs,
machines, videos), `time_section.py` (where time went) and `scaling_section.py` (`lockstep scale`).
"""
