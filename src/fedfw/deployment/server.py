"""The server of a deployment: a training that survives its own death.

Each round is appended to a journal before any client is sent what follows from it, and now and then
everything is written. A server that begins again loads that and goes through the journal's rounds
once more.
"""

import warnings
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedfw.deployment.events import JOIN, LEAVE, Mail
from fedfw.deployment.ledger import first_name
from fedfw.deployment.messages import SCHEMA, Answer
from fedfw.deployment.records import DeployedRecord
from fedfw.deployment.settings import Deployment
from fedfw.deployment.task import Task
from fedfw.deployment.training import INSIDE, TrainingServer
from fedfw.errors import ContradictionError, NobodyTrainedError
from fedfw.options import options_of
from fedfw.problems.digest import describe_model
from fedfw.problems.modules import with_parameters
from fedfw.rounds.checkpoints import DamagedCheckpointError, joined, part
from fedfw.rounds.feasibility import final_model
from fedfw.rounds.fingerprint import Fingerprint, after_rounds, fingerprint, refuse_another_run
from fedfw.rounds.folders import PLOTS, RunFolder
from fedfw.rounds.participation import Participation
from fedfw.rounds.records import History
from fedfw.rounds.wire import digest


class DeployedServer(TrainingServer):
    """The server of one training, kept in the folder that its settings name, if they do.

    Parameters
    ----------
    task : Task
        What is trained.
    settings : Deployment
        How it is deployed.
    """

    def __init__(self, task: Task, settings: Deployment | None = None) -> None:
        """Restore the last checkpoint where the run is resumed, and check that all numbers are
        there or may be asked for.
        """
        super().__init__(task, settings)
        # The run's name in the last checkpoint, and what had refuted the bound then: none at first.
        self._kept_as = ("", "")
        self._folder: RunFolder | None = None
        if self.settings.folder is not None:
            self._folder = RunFolder(self.settings.folder, self.settings.resume, private=True)
            if self.settings.resume:
                self._restore(self._folder)
                self.roster.unbind(self.settings.rebound)
        if task.is_open and not (self.settings.tell_loss or self._numbers):
            raise ValueError(
                f'{task.algorithm.name} has a penalty or a step size of "auto", which is worked '
                "out from a number of each client's data: tell-loss says that clients may send "
                "such numbers; or give a number"
            )
        if self._folder is not None:
            self._folder.claim()

    # --- writing rounds down ---

    @cached_property
    def _fingerprint(self) -> Fingerprint:
        """Return the facts that must agree for a checkpoint to be continued; none are about
        data.
        """
        task = self.task
        options = self.task.options
        participation = Participation(options.participation, task.clients, options.seed)
        model_facts = describe_model(task.model, task.loss, task.l2, task.weights)
        return model_facts | fingerprint(
            task.run(task.clients), self.algorithm, options, task.start, participation
        )

    def _save_round(self) -> None:
        """Append the round to the journal; write a checkpoint in its place under a new name of the
        run, where the bound was withdrawn, and where the journal has grown too long.
        """
        if self._folder is None:
            return
        meta = {
            "schema": SCHEMA,
            "round": self.t,
            "run": self.run,
            "fingerprint": after_rounds(self._fingerprint, self.method.rule, self.t),
            "numbers": self.numbers,
        }
        meta |= self.roster.state() | self.bound.state()
        tensors = joined({"coordinator": self.coordinator.state()})
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        payloads, moves = self._journal_entry()
        # A journal is read with its checkpoint's name of the run and its bound: where one of these
        # has changed, a checkpoint is written.
        is_same = self._kept_as == (self.run, self.bound.refuted)
        # `append` returns False where a checkpoint is due: the journal is longer than one would be.
        if not is_same or not self._folder.append(payloads, meta | moves, self.history, nbytes):
            self._folder.save(self.t, tensors, meta, self.history)
            self._kept_as = (self.run, self.bound.refuted)

    def _journal_entry(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the journal's tensors and JSON data of this round, from which `_repeat` gives the
        coordinator the same bits again.
        """
        events = self._events
        payloads = {}
        for k, payload in enumerate(events.payloads):
            if payload:
                payloads[f"payloads.{k}"] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        moves = {
            "moves": events.moves,
            "asked": events.invited,
            "exchanges": events.exchanges,
            # This round's record, and the one before it, to which this round may add its loss.
            "history": self.history[-2:].to_jsonl(),
        }
        return payloads, moves

    # --- going through them again ---

    def _restore(self, folder: RunFolder) -> None:
        """Load the last checkpoint of this run, and repeat the rounds that the journal has after
        it.
        """
        checkpoint = folder.latest()
        if checkpoint is None:
            # Files of checkpoints, all of them damaged: a new run would forget which node has which
            # client's number.
            if folder.newest_round():
                raise ValueError(
                    f"no checkpoint in {folder.path} is whole: put one back, or begin in another "
                    "folder"
                )
            return
        tensors, meta = checkpoint
        if meta["schema"] != SCHEMA:
            raise ValueError(
                f"{folder.path} has schema {meta['schema']}, this version reads {SCHEMA}"
            )
        self._numbers = meta["numbers"]
        self._refuse_another_run(folder, meta)
        self.roster.load(meta)
        self.coordinator.load(part(tensors, "coordinator"))
        self.history = History.from_jsonl(meta["history"], DeployedRecord)
        self.bound.load(meta, self.coordinator.proof)
        self.run = meta["run"]
        self._refuse_another_name(folder)
        kept_as = (self.run, self.bound.refuted)  # before the journal, whose rounds may refute it
        # A checkpoint of a later round that cannot be read also means that rounds were lost.
        if not self._repeat_journal(folder) or folder.newest_round() > self.t:
            self._begin_anew(
                "what is damaged was skipped: all are handed what was remembered before it"
            )
        else:
            self._kept_as = kept_as
            # The folder may be an older copy, whose journal ends before rounds that clients made.
            self._may_be_ahead = set(self.roster.members)

    def _refuse_another_run(self, folder: RunFolder, meta: Mapping[str, Any]) -> None:
        """Refuse a checkpoint or an entry of the journal that is not of this task."""
        t = meta["round"]
        done = min(t, self.task.options.rounds)
        here = after_rounds(self._fingerprint, self.method.rule, done)
        refuse_another_run(folder.path, meta["fingerprint"], here, t)

    def _refuse_another_name(self, folder: RunFolder) -> None:
        """Refuse a name that was given and is not the name of the run that goes on."""
        name = first_name(self.run).rpartition("-")[0]
        usual = options_of(Deployment)["run_name"].default
        if self.settings.run_name not in (usual, name):
            raise ValueError(
                f"run-name={self.settings.run_name!r} changes nothing: the run in {folder.path} is "
                f"called {name!r}, expected that, or no run-name"
            )

    def _repeat_journal(self, folder: RunFolder) -> bool:
        """Go through the rounds after the checkpoint again; return whether all of the journal could
        be repeated.
        """
        try:
            for payloads, entry in folder.entries(self.t):
                self._refuse_another_run(folder, entry)
                if entry["run"] != self.run or entry["round"] != self.t + 1:
                    return False  # rounds of another branch, from before a restore of older files
                self._repeat(payloads, entry)
                record = self.history[-1]
                if isinstance(record, DeployedRecord) and record.digest != digest(self.xbar).hex():
                    raise DamagedCheckpointError(
                        f"{folder.path}: round {self.t} did not give the same model again"
                    )
        except DamagedCheckpointError as error:
            warnings.warn(f"{error}; going on from round {self.t}", stacklevel=2)
            return False
        return True

    def _repeat(self, payloads: Mapping[str, Tensor], entry: Mapping[str, Any]) -> None:
        """Go through a round of the journal again: clients that join and leave and exchanges, in
        their order, then the roster, the bound and the history as they were after it.
        """
        for move, number in entry["moves"]:
            if move == JOIN:
                self._join(number)
            elif move == LEAVE:
                self.release(number)
            else:
                payload = payloads.get(f"payloads.{number}", torch.zeros(0, dtype=torch.uint8))
                self._repeat_exchange(number, payload.numpy().tobytes(), entry)
        self.roster.load(dict(entry))
        self.bound.load(entry, self.coordinator.proof)
        records = History.from_jsonl(entry["history"], DeployedRecord)
        # They replace the records of the last rounds, to which the round may have added a loss.
        self.history = History([*self.history[: entry["round"] - len(records)], *records])
        self._forget_round()

    def _repeat_exchange(self, index: int, payloads: bytes, entry: Mapping[str, Any]) -> None:
        """Announce an exchange again, and close it with the answers that were counted, whose
        payloads lie one behind the other in ``payloads``.
        """
        if index == 0:
            rows = self.roster.rows(entry["asked"])
            self._now = self.coordinator.open(entry["round"], [rows])
        now = self._now
        assert now is not None
        self._mail = Mail()
        self._announce(now)
        exchange = entry["exchanges"][index]
        begin = 0
        columns = ("counted", "lengths", "losses", "numbers")
        for client, length, loss, number in zip(*(exchange[c] for c in columns), strict=True):
            payload = payloads[begin : begin + length]
            begin += length
            self._mail.sent[client] = self._decode(payload, now)
            self._mail.answers[client] = Answer(
                run=self.run,
                t=now.t,
                client=client,
                kind=now.exchange.label,
                payload=payload,
                loss=loss,
                number=number,
            )
        self._close_exchange(now)

    # --- the end ---

    def _facts(self) -> dict[str, Any]:
        """Return what `fedfw.load_run` reads of the run, with the task's own facts."""
        return {
            "algorithm": repr(self.algorithm),
            "constraint": repr(self.task.constraint),
            "stopped": "all rounds done",
            "lower_bound": self.history.last("lower_bound"),
            "certificate": "",
            "task": dict(self.task.facts),
        }

    def finish(self) -> None:
        """Write the model and the plots.

        Raises
        ------
        NobodyTrainedError
            If no answer was counted in any round, or all clients have left before the end. The
            files are written all the same where there was a round that counted.
        InfeasibleError
            If the model lies outside of the constraint set by more than rounding explains. No model
            is written.
        ContradictionError
            If losses refuted the lower bound. The files are written all the same, without a bound.
        """
        refused = self._refusals()
        counted = [record.round for record in self.history if record.participants]
        if not counted:
            raise NobodyTrainedError(
                f"no answer of a client was counted in {self.t} rounds: nothing was "
                f"trained{refused}"
            )
        x = final_model(self.task.constraint, self.xbar, tol=INSIDE)
        if self._folder is not None:
            # Matplotlib is slow to import, and seldom needed.
            from fedfw.report.plots import plot_runs, save_figure

            self._folder.save_model(with_parameters(self.task.model, x))
            if self.task.facts:
                self._folder.save_facts(self._facts())
            figure = plot_runs({self.algorithm.name: self.history})
            save_figure(figure, self._folder.path / PLOTS, private=True)
            self._folder.release()
        if self.roster.empty:
            raise NobodyTrainedError(
                f"all clients had left after round {counted[-1]} of {self.t}{refused}"
            )
        if self.bound.refuted:
            raise ContradictionError(self.bound.refuted)

    def _refusals(self) -> str:
        """Return the end of a sentence that counts refused answers by reason; empty for none."""
        reasons: Counter[str] = Counter()
        for record in self.history:
            if isinstance(record, DeployedRecord):
                reasons.update(record.refused)
        if not reasons:
            return ""
        counts = (f"{count} ({why})" for why, count in reasons.items())
        return f"; refused were {', '.join(counts)}"
