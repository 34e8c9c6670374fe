"""One line for each check, `ok NAME` or `FAIL NAME: why`, as scripts/run_tests.sh counts them."""


def check(name, holds, why=''):
    print(f'ok {name}' if holds else f'FAIL {name}: {why or "not true"}', flush=True)


def check_all(name, *holds):
    check(name, all(holds), [bool(one) for one in holds])
