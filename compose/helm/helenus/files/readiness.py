"""Readiness of a worker that asks for a login: `readiness.py URL PROPERTIES KEY`, exit status 0 for an answer of 200.

Certificates are not checked, as in probes of kubelet: it is this pod that answers.
"""

import base64
import ssl
import sys
import urllib.error
import urllib.request

import javaproperties

url, file, key = sys.argv[1:]
with open(file, "rb") as stream:
    login = javaproperties.load(stream)[key]
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
token = base64.b64encode(login.encode()).decode()
request = urllib.request.Request(url, headers={"Authorization": f"Basic {token}"})
# Without a proxy that the environment may name: it would get the login.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
try:
    with opener.open(request, timeout=8):
        pass
except urllib.error.HTTPError as error:
    sys.exit(f"{error.code}: {error.read(1000).decode(errors='replace').strip()}")
except OSError as error:
    sys.exit(f"{url}: {error}")
