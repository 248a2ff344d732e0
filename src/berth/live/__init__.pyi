from berth.live.client import Client as Client
from berth.live.home import Endpoint as Endpoint
from berth.live.home import find_endpoint as find_endpoint
