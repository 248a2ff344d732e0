"""Run by the system's Python: reads flows as JSON, plays them in SimGrid and prints when each one ends.

In: {"links": [bytes/s, ...], "flows": [{"links": [number, ...], "bytes": size, "cap": bytes/s or null}, ...]}.
Every flow has two hosts of its own, so that its route is just its links.
"""

import json
import sys

from simgrid import Actor, Comm, Engine, Host, LinkInRoute, NetZone


def main() -> None:
    asked = json.load(sys.stdin)
    engine = Engine(
        [
            "flows",
            "--log=root.thresh:error",
            "--cfg=network/model:CM02",
            "--cfg=network/crosstraffic:0",
            "--cfg=network/bandwidth-factor:1",
            "--cfg=network/latency-factor:1",
            "--cfg=network/weight-S:0",
            "--cfg=maxmin/precision:1e-9",
        ]
    )
    zone = NetZone.create_full_zone("all")
    links = [
        zone.create_link(f"link{number}", capacity).set_latency(0).seal()
        for number, capacity in enumerate(asked["links"])
    ]
    for number, flow in enumerate(asked["flows"]):
        ends = [zone.create_host(f"{end}{number}", 1e9).seal() for end in ("from", "to")]
        route = [LinkInRoute(links[link]) for link in flow["links"]]
        if flow["cap"] is not None:
            own = zone.create_link(f"cap{number}", flow["cap"]).set_latency(0).seal()
            route.append(LinkInRoute(own))
        zone.add_route(ends[0].netpoint, ends[1].netpoint, None, None, route, False)
    zone.seal()
    finished = {}

    def send(number, size):
        Comm.sendto(Host.by_name(f"from{number}"), Host.by_name(f"to{number}"), size)
        finished[number] = Engine.clock

    for number, flow in enumerate(asked["flows"]):
        Actor.create(f"send{number}", Host.by_name(f"from{number}"), send, number, int(flow["bytes"]))
    engine.run()
    print(json.dumps([finished[number] for number in range(len(asked["flows"]))]))


if __name__ == "__main__":
    main()
