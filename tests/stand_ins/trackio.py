"""A stand-in for trackio: writes each call to the file that CALLS names."""
import json
import os
from types import SimpleNamespace


def call(name, *words):
    with open(os.environ['CALLS'], 'a', encoding='utf-8') as file: file.write(json.dumps([name, *words]) + '\n')


def init(project, name):
    call('init', project, name)
    return SimpleNamespace(config=SimpleNamespace(update=lambda config: call('config', config)))


def log(values, step):
    call('log', step, values)


def finish():
    call('finish')
