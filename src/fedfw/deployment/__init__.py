"""Clients and servers that talk: the same steps as in simulations, whatever carries the messages."""

from fedfw.deployment.client import Client
from fedfw.deployment.consent import Consent, DataBudget
from fedfw.deployment.records import DeployedRecord
from fedfw.deployment.server import DeployedServer
from fedfw.deployment.settings import Deployment
from fedfw.deployment.task import Task

__all__ = ["Client", "Consent", "DataBudget", "DeployedRecord", "DeployedServer", "Deployment", "Task"]
