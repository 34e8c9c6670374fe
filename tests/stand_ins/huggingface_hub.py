"""In place of the package, since no test may need the network: the files of the folder $HUB. $SHA256 is what their hashes should
be, where it is set."""
import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

HUB = Path(os.environ['HUB'])


class HfApi:
    def list_repo_tree(self, repo_id, path_in_repo=None, *, recursive=False, repo_type=None):
        print('listed', repo_id, repo_type)
        for path in HUB.rglob('*'):
            name = str(path.relative_to(HUB))
            if path.is_file():
                sha256 = os.environ.get('SHA256') or hashlib.sha256(path.read_bytes()).hexdigest()
                yield SimpleNamespace(path=name, size=1, lfs=SimpleNamespace(sha256=sha256))
            else:
                yield SimpleNamespace(path=name)


def hf_hub_download(repo_id, filename, *, repo_type=None, local_dir=None):
    if not local_dir:
        return str(HUB / filename)
    Path(local_dir).mkdir(parents=True, exist_ok=True)
    return shutil.copy(HUB / filename, local_dir)
