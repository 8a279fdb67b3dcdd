"""`lockstep report --html`: runs as one self-contained web page.

`load.py` reads and down-samples runs, `groups.py` groups them over seeds, `chart.py` draws SVG, `time_use.py` explains
where time went, `page.py` fills in `page.html.j2`, which `style.css` and `page.js` are written into.
"""
