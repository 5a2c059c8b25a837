"""The defects of Avalanche 0.6.0's SI, RWalk, EWC and MAS, each as the changes that mend it."""

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

DEFECTS = (SI, RWALK, EWC, MAS)
