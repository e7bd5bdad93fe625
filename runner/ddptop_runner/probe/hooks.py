"""The patches of torch: backward passes, loss scalers, optimizer steps, data loaders.

Every private name of torch that the probe uses is in this file, or in losses, evidence,
memory, or time_parts. A patch that does not fit this torch is left out; the rest still works.

A compiled optimizer step runs no Python hook, but it changes parameters, and a tensor counts its
changes. So at a backward pass that follows another without a step between, a changed parameter
means that there was a step. The last step of a training is found only if the optimizer still exists
when the process ends.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from _thread import get_ident
from time import monotonic

from . import (
    advice,
    identity,
    ledger,
    losses,
    memory,
    profiling,
    recorder,
    replicas,
    saves,
    time_parts,
)
from .recorder import AWAITED, is_own
from .time_parts import BACKWARD, BATCH, FORWARD

ARGUMENTS = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
"""The parameters of torch.autograd.backward."""


class Hooks:
    """The patches of one process."""

    def __init__(self, torch, record):
        self.torch = torch
        self.record = record
        self._training_thread = get_ident()
        self._is_compiling = torch.compiler.is_compiling
        # both are constants to the compiler; this one is fast
        self._is_traced = torch.compiler.is_dynamo_compiling
        self._dispatch_modes = losses.dispatch_modes(torch)
        self.scalers = losses.Scalers(torch, record, self._guarded)
        self._watch = StepWatch()
        self._steps_at_last_look = 0
        self._unseen_in_a_row = 0
        self._losses_at_last_find = 0
        self._saves = saves.Saves(record, self._is_compiling)
        self.ddp_use = advice.DdpUse(torch, record)
        self.gradients = advice.Gradients(torch)
        self.borders = time_parts.Borders(torch, record)
        self.parts = time_parts.TimeParts(torch, record, self.ddp_use, self.borders)
        self.profiling = profiling.Profiling(torch, record)
        self.ledger = ledger.Ledger(torch, record)
        record.data_position = self.ledger.position
        self.replicas = replicas.Replicas(torch, record, self.parts)
        self.ledger.is_joined = self.replicas.is_joined
        record.on_look = self.replicas.after_step
        self.patched = []
        """[(owner, name, original, what is in its place)]"""
        self.step_handles = []

    def begin(self):
        """Reset, as at the start of a process."""
        parts = (self.parts, self.borders, self.ledger, self.replicas, self.ddp_use, self.gradients)
        for part in (*parts, self.profiling):
            part.begin()

    def arm(self):
        """Patch torch; each patch is separate, so a missing name affects only its own metric."""
        torch, record = self.torch, self.record
        for patch in (
            lambda: self._patch(torch.autograd, "backward", self._wrap_backward),
            lambda: self.arm_scaler(torch.amp.GradScaler),
            self.arm_step,
            lambda: self._patch(torch.optim.Optimizer, "_patch_step_function", self._register),
            self._arm_data_loader,
            lambda: self._patch(torch.nn.DataParallel, "__init__", self._then(self._note_replicas)),
            # below __init__, whose warnings name its caller's line
            lambda: self._patch(
                torch.nn.parallel.DistributedDataParallel,
                "_ddp_init_helper",
                self._then(self._note_group),
            ),
            lambda: self._patch(torch.autocast, "__enter__", self._enter_autocast),
            lambda: self.parts.arm(self._patch),
            record.watch_gc,
            lambda: memory.arm(torch),
            lambda: self._arm_save((torch.serialization, torch), "save", saves.torch_target),
            lambda: self._arm_save((torch.serialization, torch), "load", saves.torch_source, True),
            lambda: _hide_from_dynamo(
                torch,
                [part.__name__ for part in (advice, ledger, losses, memory, profiling, recorder)]
                + [replicas.__name__, saves.__name__, time_parts.__name__, __name__],
            ),
        ):
            try:
                patch()
            except Exception:  # an unknown version of torch: do without
                pass

    def arm_scaler(self, scaler):
        """Store the unscaled loss of a class of gradient scalers, and detect skipped steps."""
        self._patch(scaler, "scale", self.scalers.scale)
        if "update" in vars(scaler):
            self._patch(scaler, "update", self.scalers.update)

    def arm_saver(self, module):
        """Detect what a module of saves.SAVERS saves, and one of saves.LOADERS loads."""
        for table, loads in ((saves.SAVERS, False), (saves.LOADERS, True)):
            if module.__name__ in table:
                name, target_of = table[module.__name__]
                self._arm_save((module,), name, target_of, loads)

    def arm_deepspeed(self, engine):
        """DeepSpeed scales fp16 losses itself: use the loss that the script passes."""
        self._patch(engine, "backward", self.scalers.deepspeed_backward)
        self._patch(engine, "step", self.scalers.deepspeed_step)

    def arm_apex(self, amp):
        """The same for apex.amp, which scales losses too."""
        self._patch(amp, "scale_loss", self.scalers.apex_scale_loss)

    def _patch(self, owner, name, make):
        original = getattr(owner, name)
        patch = functools.wraps(original)(make(original))
        setattr(owner, name, patch)
        self.patched.append((owner, name, original, patch))

    def _guarded(self, function):
        """Wrap `function`: inactive while traced, raises only the script's own exceptions."""
        is_traced = self._is_traced

        def guarded(*args):
            if not is_traced():
                try:
                    function(*args)
                except Exception as error:
                    if not is_own(error):
                        raise

        return guarded

    def _wrap_backward(self, original):
        code = getattr(original, "__code__", None)
        if code is not None and code.co_varnames[: code.co_argcount] == ARGUMENTS:
            return self._backward(original)
        look = self._backward(lambda *arguments: None)

        def backward(*args, **kwargs):  # of an unknown version of torch
            look(*args[:2], **{name: kwargs[name] for name in ARGUMENTS[:2] if name in kwargs})
            return original(*args, **kwargs)

        return backward

    def _backward(self, original):
        torch, record, scalers = self.torch, self.record, self.scalers
        is_traced, tensor_type, handed_over = self._is_traced, torch.Tensor, scalers.handed_over
        function_modes, dispatch_modes = torch._C._len_torch_function_stack, self._dispatch_modes
        saw, unseen = self.saw_backward, torch._C.DisableTorchFunction
        borders = self.borders

        def backward(
            tensors,
            grad_tensors=None,
            retain_graph=None,
            create_graph=False,
            grad_variables=None,
            inputs=None,
        ):
            is_seen = not is_traced()
            if is_seen:
                try:
                    if borders.marks is not None:
                        borders.mark(FORWARD)
                    if function_modes() or type(tensors) is not tensor_type:
                        with unseen():  # by the script's subclasses and modes
                            saw(tensors, grad_tensors)
                    elif (
                        record.plain_loss is not AWAITED
                        or grad_tensors is not None
                        or dispatch_modes()
                        or handed_over
                        or scalers.labels
                        or not tensors.is_cpu
                    ):
                        saw(tensors, grad_tensors)
                    else:
                        record.plain_loss = tensors.item()
                        record.until_backward_s += monotonic() - record.progress[1]
                except Exception as error:
                    if not is_own(error):
                        raise
            original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            if is_seen and borders.marks is not None:
                borders.mark(BACKWARD)

        return backward

    def saw_backward(self, tensor, gradient):
        """Count a backward pass, and store its loss if it can be read."""
        is_tensor = isinstance(tensor, self.torch.Tensor)
        if not is_tensor and isinstance(tensor, (tuple, list)) and len(tensor) == 1:
            tensor = tensor[0]
            is_tensor = isinstance(tensor, self.torch.Tensor)
        if self._is_compiling() or (
            is_tensor and tensor.is_cuda and losses.is_capturing(self.torch)
        ):
            return
        record = self.record
        if record.plain_loss is not AWAITED:
            record.end_run()
            if record.passes >= record.usual_backwards:
                self.find_unseen_steps()
        record.passed(self._loss_of(tensor, gradient) if is_tensor else None)
        if self.replicas.is_due:
            self.replicas.look()

    def _loss_of(self, tensor, gradient):
        """The loss of a backward pass; None if none can be read."""
        record = self.record
        if record.script_reports_loss:
            return None
        if gradient is not None and not (
            isinstance(gradient, (tuple, list)) and all(item is None for item in gradient)
        ):  # an inner pass, as in activation checkpointing: no loss
            return None
        whole, divisor = tensor, 1
        if self.scalers.handed_over:
            tensor, divisor = self.scalers.handed_over.pop(), self.scalers.divisor
        elif self.scalers.labels:
            # a scaled loss that was processed further means nothing to a user
            tensor = getattr(tensor, losses.UNSCALED, None)
            if tensor is None:
                return None
        loss = self.read(tensor)
        if loss is None:
            return None
        if record.awaits_divisor:
            record.divisor = losses.divisor_of(whole, tensor is not whole)
        return loss if divisor == 1 else loss / divisor

    def find_unseen_steps(self):
        """Count the steps that no hook has seen, once there were several in a row.

        A single one may be something else: sharpness-aware optimizers move the parameters between
        two backward passes, and a step that is seen follows.
        """
        record, changed = self.record, self._watch.changed()
        if self._steps_at_last_look != record.optimizer_steps:
            self._unseen_in_a_row = 0
        elif changed:
            self._unseen_in_a_row += 1
            if self._unseen_in_a_row >= IN_A_ROW:
                is_first = self._unseen_in_a_row == IN_A_ROW
                count = IN_A_ROW if is_first else 1
                record.found_steps(changed, count, self._losses_at_last_find)
            self._losses_at_last_find = len(record.pending_losses)
        self._steps_at_last_look = record.optimizer_steps

    def read(self, tensor):
        """A float from the CPU, a detached tensor from CUDA, None from anything else."""
        torch = self.torch
        kind = type(tensor)
        if kind is not torch.Tensor and (
            # DTensor and the like: reading it could start a collective
            kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        ):
            return None
        if tensor.numel() != 1 or self._dispatch_modes():
            return None
        if tensor.is_cuda:
            return tensor.detach()
        return float(tensor.item()) if tensor.is_cpu else None

    def _register(self, original):
        register, record = self._watch.register, self.record
        number_of_threads = self.torch.get_num_threads

        def _patch_step_function(optimizer):
            register(optimizer)
            record.threads = number_of_threads()
            if record.is_silent and identity.has_joined():
                record.announce()  # a member of a group is a rank, whatever started it
            return original(optimizer)

        return _patch_step_function

    def arm_step(self):
        """Count and time the steps of all optimizers."""
        record = self.record
        record.is_traced, record.look = self._is_traced, self._look
        # torch.optim deletes the attributes that its submodules leave on it
        optimizers = sys.modules["torch.optim.optimizer"]
        self.step_handles = [optimizers.register_optimizer_step_post_hook(record.after_step)]

    def _look(self, optimizer):
        """A step has ended, and something is to be known of it."""
        borders, profiling, gradients = self.borders, self.profiling, self.gradients
        if borders.is_due:
            borders.sample(optimizer)
        if profiling.is_active:
            profiling.stepped()
        if not gradients.is_found:
            steps = self.record.steps
            if steps and not steps & (steps - 1):
                gradients.look(optimizer)
        self.record.is_look_due = borders.is_due or profiling.is_active or not gradients.is_found

    def _arm_data_loader(self):
        # below __next__, whose warning about a dataset's length names its caller's line
        loader = self.torch.utils.data.dataloader
        for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
            self._patch(getattr(loader, name), "_next_data", self._next_data)

    def _then(self, note):
        """What wraps a method of a parallel module so that `note` follows."""
        note = self._guarded(note)

        def wrap(original):
            def method(parallel, *args, **kwargs):
                original(parallel, *args, **kwargs)
                note(parallel)

            return method

        return wrap

    def _note_replicas(self, parallel):
        self.record.replicas = max(len(parallel.device_ids), self.record.replicas or 0) or None

    def _note_group(self, parallel):
        size = parallel.process_group.size()
        self.ledger.ddp_world_size = max(size, self.ledger.ddp_world_size or 0)
        self.replicas.note(parallel)
        with self.torch._C.DisableTorchFunction():  # of the script's parameters
            self.ddp_use.made(parallel)

    def _enter_autocast(self, original):
        use, is_traced = self.ddp_use, self._is_traced

        def __enter__(mode):
            if not is_traced() and getattr(mode, "_enabled", True):
                use.has_autocast = True
            return original(mode)

        return __enter__

    def _arm_save(self, owners, name, target_of, loads=False):
        """Replace a function that several modules have with one wrapper."""
        wrapped = self._saves.wrap(getattr(owners[0], name), target_of, loads)
        for owner in owners:
            self._patch(owner, name, lambda original: wrapped)

    def _next_data(self, original):
        record, thread = self.record, self._training_thread
        took, finished = self._guarded(self.ledger.took), self._guarded(self.ledger.finished)
        borders = self.borders
        count = self._guarded(self.ledger.count)
        grad_enabled = self.torch.is_grad_enabled

        def next_data(loader):
            # in another thread, it is a prefetch
            is_here = get_ident() == (record.step_thread or thread)
            if is_here and grad_enabled():
                start_s = monotonic()
                try:
                    batch = original(loader)
                except StopIteration:
                    finished(loader)
                    raise
                finally:
                    record.data_wait_s = (record.data_wait_s or 0.0) + monotonic() - start_s
                if borders.marks is not None:
                    borders.mark(BATCH)
                if not record.batches & record.count_mask:
                    count(batch)
                position = loader._num_yielded
                if not position & (position - 1) or position < ledger.FIRST_POSITIONS:
                    took(loader, batch)
                record.batches += 1
            else:
                batch = original(loader)
                record.batches += 1
                if is_here:
                    record.batch_without_gradient = record.batches
            return batch

        return next_data


def _hide_from_dynamo(torch, names):
    """Keep torch.compile from tracing the probe's own frames where it falls back to Python."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        skip = frames.skip_code
    else:
        strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)

        def skip(code):
            frames.set_code_exec_strategy(code, strategy)

    for name in names:
        for code in _code_objects(sys.modules[name]):
            skip(code)


def _code_objects(module):
    """Every code object that was compiled for a module, closures included."""
    kinds = [vars(kind) for kind in vars(module).values() if isinstance(kind, type)]
    for members in [vars(module), *kinds]:
        for member in members.values():
            code = getattr(getattr(member, "fget", member), "__code__", None)
            if code is not None and code.co_filename == module.__file__:
                yield from _with_nested(code)


def _with_nested(code):
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from _with_nested(constant)


SAMPLE_SIZE = 8
"""Parameters checked per optimizer: the first may be unused and never change."""

IN_A_ROW = 3
"""Steps that must be found before any of them counts."""


class StepWatch:
    """Finds steps by the parameters that they changed, for the optimizers of one process."""

    def __init__(self):
        self._seen = []
        """[(reference to the optimizer, sum of versions when last looked at)]"""

    def register(self, optimizer):
        """An optimizer is being created."""
        self._seen = [entry for entry in self._seen if entry[0]() is not None]
        # LBFGS changes its parameters several times in a step, and is never compiled
        if not any(kind.__name__ == "LBFGS" for kind in type(optimizer).__mro__):
            self._seen.append((weakref.ref(optimizer), None))

    def changed(self):
        """The optimizers whose parameters changed since the last call."""
        changed = []
        for position, (ref, before) in enumerate(self._seen):
            optimizer = ref()
            if optimizer is None:
                continue
            now = _versions(optimizer)
            if now != before:
                self._seen[position] = (ref, now)
                if before is not None:
                    changed.append(optimizer)
        return changed


def _versions(optimizer):
    """How often a few parameters of an optimizer were changed in place."""
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    counting = (one for one in parameters if one.requires_grad and not one.is_inference())
    return sum(one._version for one in itertools.islice(counting, SAMPLE_SIZE))
