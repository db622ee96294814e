"""The two apps that Flower starts."""

from federation.task import make_task
from fedfw.deployment.flower import client_app, server_app

server = server_app(make_task)
client = client_app(make_task)
