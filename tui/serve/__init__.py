"""The dashboard in the browser: a web server that starts one dashboard for each page and shows its terminal there.

Lives here: who may ask (``guard``), the server and its pages (on textual-serve), and the dashboards' processes.
"""
