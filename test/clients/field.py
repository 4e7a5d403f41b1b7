"""Sends requests through clients of PyPI, each as its maker ships it: nothing here looks at an answer's fields.

    python field.py URL REQUESTS CLIENTS PATHS CALLER

as field.mjs has it.
"""

import sys
import threading

import httpx
import httpx_retries
import urllib3

url, requests, clients, paths, caller = sys.argv[1:]


def with_urllib3(base, headers):
    pool = urllib3.PoolManager()
    return lambda: pool.request("GET", base, headers=headers).status


def with_httpx_retries(base, headers):
    api = httpx.Client(transport=httpx_retries.RetryTransport(), headers=headers, timeout=60)
    return lambda: api.get(base).status_code


MAKERS = {"urllib3": with_urllib3, "httpx-retries": with_httpx_retries}


def run(client, path):
    send, got = MAKERS[client](url + path, {"x-caller": f"{client}-{caller}"}), []
    for _ in range(int(requests)):
        try:
            got.append(send())
        except Exception as error:  # The line names it.
            got.append(repr(error))
    sys.stdout.write(" ".join(map(str, [client, path, *got])) + "\n")


for client in clients.split(","):
    for path in paths.split(","):
        threading.Thread(target=run, args=(client, path)).start()
