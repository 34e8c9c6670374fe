"""All checks of scripts/experiments in one process: check_experiments.py FOLDER, an empty folder for their files. Prints `ok NAME` or
`FAIL NAME: why` per check. tests/experiments.sh runs it."""
import sys
import traceback
from pathlib import Path

import check_pages
import check_phases
import check_plans
import check_report
import check_runs
import check_statistics
import check_tasks

for module in (check_statistics, check_plans, check_phases, check_tasks, check_report, check_pages, check_runs):
    folder = Path(sys.argv[1]) / module.__name__
    folder.mkdir()
    try:
        module.main(folder)
    except Exception as error:   # the others go on
        traceback.print_exc()
        print(f'FAIL {module.__name__}: {type(error).__name__}: {error}')
