"""HTML reports: of a run (`run_report`) and of scored pictures (`scoring_page`), with the parts that pages share.

Pages are Python f-strings around a few shared elements in `page`, all text escaped; charts are inline SVG from `svg`,
which takes its colours from the style sheet and needs no script.
"""
