"""Serve the example web application: `python -m examples.webapp --port 8801 --variant base`."""

import argparse

from examples.webapp.pages import VARIANTS
from examples.webapp.server import PASSWORD, WebApp

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.webapp")
    parser.add_argument("--port", type=int, default=8801)
    parser.add_argument("--variant", choices=VARIANTS, default="base")
    chosen = parser.parse_args()
    with WebApp(chosen.variant, chosen.port) as app:
        print(f"{app.url}  variant {chosen.variant}, password {PASSWORD}; Ctrl-C ends it", flush=True)
        try:
            app.serve_forever()
        except KeyboardInterrupt:
            print("ended")
