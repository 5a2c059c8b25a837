"""The defects of Avalanche 0.6.0, each as the changes that mend it."""

from __future__ import annotations

from functools import partial

from benchmarks.upstream.edits import Defect, Edit, methods_of

_NOTE_MODES = "modes = [(module, module.training) for module in {}.modules()]"
_RESTORE_MODES = """
for module, training in modes:
    module.training = training
"""

_si = methods_of("SynapticIntelligencePlugin")
_SI_ITERATION = """
<found>
# The path integral is that of the loss alone: take off the penalty's part.
exp_id = min(strategy.clock.train_exp_counter, len(self.si_lambda) - 1)
for name, trajectory in self.syn_data["trajectory"].items():
    old = self.syn_data["old_theta"][name].data
    new = self.syn_data["new_theta"][name].data
    reference, importance = (data[name].data for data in self.ewc_data)
    pull = self.si_lambda[exp_id] * importance * (old - reference)
    trajectory.data -= pull * (new - old)
"""
SI = Defect(
    "si",
    "training/plugins/synaptic_intelligence.py",
    "SynapticIntelligenceTest",
    (
        _si("extract_weights", "Call", "<found>.clone()", ("flatten",)),
        _si("update_ewc_data", "keyword", "min=0, <found>", ("max", "clip_to")),
        _si(
            "__init__",
            "Constant",
            "<found>,\nmax_importance: Optional[float] = 0.001",
            ("as_strategy",),
        ),
        _si(
            "__init__",
            "docstring",
            ":param max_importance: Limit of the importances; None for no limit.",
        ),
        _si(
            "__init__",
            "Assign",
            "<found>\nself.max_importance = max_importance",
            ("_device", "device"),
        ),
        _si("after_training_exp", "Constant", "self.max_importance", ("0.001",)),
        _si("after_training_iteration", "Expr", _SI_ITERATION, ("post_update",)),
        _si(
            "compute_ewc_loss",
            "AnnAssign",
            "ewc_data0, ewc_data1 = ewc_data0.to(weights), ewc_data1.to(weights)\n<found>",
            ("syn_loss",),
        ),
    ),
)

_rwalk = methods_of("RWalkPlugin")
RWALK = Defect(
    "rwalk",
    "training/plugins/rwalk.py",
    "RWalkTest",
    (
        _rwalk(
            "_update_grad", "Expr", _NOTE_MODES.format("model") + "\n<found>", ("model", "eval")
        ),
        _rwalk("_update_grad", "Assign", f"<found>\n{_RESTORE_MODES}", ("iter_grad",)),
        _rwalk("before_training", "name", "before_training_exp"),
        _rwalk(
            "after_training_exp",
            "Assert",
            "<found>\n# The end of the experience cuts an interval short: count it\n"
            "self._update_score(strategy)",
        ),
        _rwalk(
            "after_training_exp",
            "If",
            "if k not in self.exp_scores:\n    exp_scores[k] = p_cp_score\n    continue",
            ("k", "exp_scores"),
        ),
        _rwalk(
            "after_training_exp",
            "Assign",
            "<found>\n# Nothing to normalize if no parameter has moved, or none matters\n"
            "max_score = max_score if max_score > 0 else 1.0\n"
            "max_imp = max_imp if max_imp > 0 else 1.0",
            ("max_imp", "max"),
        ),
    ),
)

_EWC_LOOP = """
ignored = getattr(criterion, "ignore_index", None)
samples = 0
for batch in dataloader:
    x, y, task_labels = batch[0].to(device), batch[1].to(device), batch[-1]
    # One sample at a time: the Fisher information is the mean of the
    # squared gradients of single samples, not the square of their mean
    for i in range(len(x)):
        if y.dim() == 1 and y[i] == ignored:
            continue
        optimizer.zero_grad()
        out = avalanche_forward(model, x[i : i + 1], task_labels[i : i + 1])
        criterion(out, y[i : i + 1]).backward()
        samples += 1
        for name, p in model.named_parameters():
            if p.grad is not None:
                importances[name].data += p.grad.pow(2)
"""
_ewc = partial(Edit, "EWCPlugin.compute_importances")
EWC = Defect(
    "ewc",
    "training/plugins/ewc.py",
    "EWCTest",
    (
        _ewc("Expr", _NOTE_MODES.format("model") + "\n<found>", ("model", "eval")),
        _ewc("For", _EWC_LOOP, ("batch", "dataloader")),
        _ewc(
            "For",
            "# average over samples\nfor imp in importances.values():\n"
            "    imp.data /= float(max(samples, 1))",
            ("imp", "float", "len"),
            comment=True,
        ),
        _ewc("Expr", _RESTORE_MODES, ("model", "train")),
    ),
)

_MAS_LOOP = """
samples = 0
for batch in dataloader:
    x, t = batch[0].to(strategy.device), batch[-1]
    # One sample at a time: magnitudes do not cancel as gradients do
    for i in range(len(x)):
        strategy.optimizer.zero_grad()
        out = avalanche_forward(strategy.model, x[i : i + 1], t[i : i + 1])
        out.pow(2).sum().backward()
        samples += 1
        for name, param in strategy.model.named_parameters():
            # Other tasks' heads have no gradient
            if param.grad is not None:
                importance[name].data += param.grad.abs()
"""
_mas = methods_of("MASPlugin")
MAS = Defect(
    "mas",
    "training/plugins/mas.py",
    "MASTest",
    (
        _mas(
            "_get_importance",
            "Expr",
            "# The importances are those of the model as it is evaluated\n"
            + _NOTE_MODES.format("strategy.model")
            + "\nstrategy.model.eval()",
            ("strategy", "model", "train"),
            comment=True,
        ),
        _mas("_get_importance", "For", _MAS_LOOP, ("batch", "dataloader")),
        _mas("_get_importance", "Call", "float(max(samples, 1))", ("float", "dataloader")),
        _mas("_get_importance", "Return", f"{_RESTORE_MODES}\n<found>"),
        _mas("before_backward", "UnaryOp", "strategy.loss is None", ("loss",)),
        _mas(
            "after_training_exp",
            "Assign",
            "# Both or none: an interrupted pass leaves what is remembered as it was\n"
            "curr_importance = self._get_importance(strategy)\n<found>",
            ("params", "copy_params_dict"),
        ),
        _mas(
            "after_training_exp",
            "If",
            "if exp_counter == 0:\n    self.importance = curr_importance\n    return",
            ("exp_counter", "_get_importance"),
        ),
    ),
)

_lwf = methods_of("LearningWithoutForgetting")
_LWF_CLASSES = '''
def _add_classes(self, model, dataset):
    """Note the classes that the teacher knows."""
    targets = [int(target) for target in dataset.targets]
    tasks = getattr(dataset, "targets_task_labels", [0] * len(targets))
    # Outputs that all tasks share go by the name of task 0
    multi_task = isinstance(model, MultiTaskModule)
    for target, task in zip(targets, tasks):
        if target >= 0:  # others are labels that a criterion ignores
            self.prev_classes_by_task[int(task) if multi_task else 0].add(target)

<found>
'''
LWF = Defect(
    "lwf",
    "training/regularization.py",
    "LwFTest",
    (
        _lwf("post_adapt", "Call", "<found>.eval()", ("deepcopy",)),
        _lwf("update", "Call", "<found>.eval()", ("deepcopy",)),
        _lwf("post_adapt", "Assign", "", ("task_ids", "uniques")),
        _lwf("update", "Assign", "", ("task_ids", "uniques")),
        _lwf("post_adapt", "For", "self._add_classes(agent.model, exp.dataset)", ("task_set",)),
        _lwf("update", "For", "self._add_classes(model, experience.dataset)", ("task_set",)),
        Edit("LearningWithoutForgetting", "FunctionDef", _LWF_CLASSES, ("post_adapt",)),
    ),
)

_agem = methods_of("AGEMPlugin")
AGEM = Defect(
    "agem",
    "training/plugins/agem.py",
    "AGEMTest",
    (
        _agem("before_training_iteration", "Attribute", "p.grad.reshape", ("view",)),
        _agem("after_backward", "Attribute", "p.grad.reshape", ("view",)),
        _agem("update_memory", "keyword", "shuffle=True,\n<found>", ("num_workers",)),
        _agem(
            "update_memory",
            "Expr",
            "if self.sample_size <= len(self.buffers):\n"
            "    raise ValueError(\n"
            '        f"sample_size={self.sample_size} leaves no pattern for each of "\n'
            '        f"{len(self.buffers) + 1} experiences: use a larger one."\n'
            "    )\n<found>",
            ("append",),
        ),
    ),
)

_PICKLER = '''
class _ByNamePickler(dill.Pickler):
    """Writes a class that can be imported by its name, not by its code.

    dill takes the optimizers of current PyTorch for classes without a module. With
    their code it would write all of `torch.optim`, which fails.
    """

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, type) and id(obj) not in self.memo:
            found = sys.modules.get(obj.__module__)
            for part in obj.__qualname__.split("."):
                found = getattr(found, part, None)
            if found is obj:
                self.save_global(obj)
                return
        super().save(obj, save_persistent_id)


_PICKLE_MODULE = ModuleType("dill")
_PICKLE_MODULE.__dict__.update(vars(dill))
_PICKLE_MODULE.__dict__["Pickler"] = _ByNamePickler


<found>
'''
CHECKPOINTING = Defect(
    "checkpointing",
    "checkpointing/checkpoint.py",
    "CheckpointingTest",
    (
        Edit("", "Import", "<found>\nimport sys", ("os.path",)),
        Edit("", "ImportFrom", "<found>\nfrom types import ModuleType", ("copy",)),
        Edit("", "FunctionDef", _PICKLER, ("constructor_based_serialization", "pickler")),
        Edit("save_checkpoint", "keyword", "pickle_module=_PICKLE_MODULE", ("dill",)),
    ),
)

_CHART = '''
def _custom_chart(wandb):
    """The class of charts; current versions of wandb have no `viz`."""
    return getattr(wandb, "viz", wandb.plot).CustomChart


<found>
'''
_wandb = methods_of("WandBLogger")
WANDB = Defect(
    "wandb",
    "logging/wandb_logger.py",
    "WandBTest",
    (
        Edit("", "Import", "<found>\nfrom uuid import uuid4", ("warnings",)),
        Edit("", "ClassDef", _CHART, ("WandBLogger",)),
        _wandb(
            "log_single_metric",
            "Attribute",
            "_custom_chart(self.wandb)",
            ("viz", "CustomChart"),
            count=3,
        ),
        _wandb("before_run", "Call", "uuid4().hex[:8]", ("generate_id",)),
    ),
)

DEFECTS = (SI, RWALK, EWC, MAS, LWF, AGEM, CHECKPOINTING, WANDB)
"""All defects; a page in ``docs/upstream`` is the text of each pull request."""
