"""slime/utils is no second core: it holds the modules whose names slime's plug-ins import, and nothing else."""

import ast

from tests.architecture.source import parsed, source_files

MODULES = {"__init__": set(), "data": {"Dataset", "read_file"}, "misc": {"load_function"}}
MODULES["types"] = {"Sample", "Status", "SpecInfo", "PrefixCacheInfo"}
MODULES["eval_config"] = {"EvalDatasetConfig", "build_eval_dataset_configs", "ensure_dataset_list"}
MODULES["http_utils"] = {"post", "shared_connections"}


def test_slime_utils_holds_only_what_plug_ins_import() -> None:
    found = {
        file.stem: {
            node.name
            for node in parsed(file).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
        }
        for file in source_files("slime")
        if file.parent.as_posix() == "slime/utils"
    }
    assert found == MODULES
