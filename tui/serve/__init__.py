"""The dashboard in the browser: a web server that starts one dashboard for each page and shows its terminal there."""
