"""The defects of Avalanche 0.6.0's LwF, A-GEM, checkpoints and W&B logger, as changes."""

from __future__ import annotations

from benchmarks.upstream.edits import Defect, Edit, methods_of

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

DEFECTS = (LWF, AGEM, CHECKPOINTING, WANDB)
