"""``fedfw deploy demo``: a whole Flower federation on this machine, for one run, beside its
simulation.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedfw.algorithms.contract import Algorithm
from fedfw.cli.arguments import adds, argument
from fedfw.cli.deploy_init import copy_app
from fedfw.cli.deploy_report import (
    LEGEND,
    TOTALS_HEADER,
    WHY_SO_LONG,
    line_of,
    read_records,
    reasons,
    rounds_table,
    title,
    totals_row,
)
from fedfw.cli.flags import flags_of, values_given
from fedfw.config import RunConfig, all_options, merge, rooted
from fedfw.config.app import app_options
from fedfw.deployment.consent import USUAL_SETS, Consent, entry_of, sets_of
from fedfw.deployment.flower import local
from fedfw.deployment.flower.app_folder import PROJECT, AppFolder
from fedfw.deployment.flower.apps import deployment_of
from fedfw.deployment.flower.template.federation.task import make_task
from fedfw.deployment.obeyed import (
    NotedSettings,
    find_unread,
    given_in_table,
    validate_deployment,
    validate_taken_over,
)
from fedfw.deployment.records import DeployedRecord
from fedfw.deployment.server import DeployedServer
from fedfw.deployment.settings import APP_DEFAULTS, SIMULATED_ONLY, Deployment
from fedfw.deployment.task import Task
from fedfw.options import options_of
from fedfw.problems import Problem
from fedfw.report.bars import progress_bar
from fedfw.report.tables import fitted
from fedfw.rounds.options import Options
from fedfw.simulation import Run, Simulation
from fedfw.simulation.callbacks import Progress

FIRST_CHOICE = {"algorithm": APP_DEFAULTS["algorithm"]}
"""The algorithm where none is named."""
