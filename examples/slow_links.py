"""The slowest link of each kind between the cores of this host.

python examples/slow_links.py
"""

import json
import subprocess
import sys

done = subprocess.run(
    [sys.executable, "-m", "collective_ops", "topo", "--json"], capture_output=True, text=True, check=False
)
if done.returncode not in (0, 3):  # 3: links are marked as slow
    sys.exit(done.stderr)
links = json.loads(done.stdout)["links"]
for link in links:
    if link["state"] == "down":
        print(f"core {link['sender']} to {link['receiver']}: could not be measured")
measured = [link for link in links if link["state"] != "down"]
for kind in sorted({link["kind"] for link in measured}):
    link = min((link for link in measured if link["kind"] == kind), key=lambda link: link["bandwidth_gbs"])
    speed = f"{link['bandwidth_gbs']:.1f} GB/s, {link['latency_ns']:.0f} ns ({link['state']})"
    print(f"{kind}: from core {link['sender']} to {link['receiver']} {speed}")
