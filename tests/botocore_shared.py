"""What botocore makes again for each session and client, made once in a process of tests.

Each command that a test runs has a session of its own. Without this, a quarter of the processor
time of such tests went into the same API descriptions, names of events and methods of clients.
"""

from __future__ import annotations

import functools
from typing import Any

import botocore.client
import botocore.hooks
import botocore.loaders
import botocore.model


def share_what_is_always_the_same() -> None:
    # A new loader would read and keep EC2's whole API description: gigabytes after all tests.
    botocore.loaders.create_loader = functools.lru_cache(botocore.loaders.create_loader)
    # Shapes that a model has made stay with it: all of those of errors, for the first error.
    model_of = functools.lru_cache(maxsize=None)(
        lambda loader, service, version: botocore.model.ServiceModel(
            loader.load_service_model(service, "service-2", api_version=version), service
        )
    )
    botocore.client.ClientCreator._load_service_model = lambda creator, service, api_version=None: (
        model_of(creator._loader, service, api_version)
    )
    aliased = functools.lru_cache(maxsize=None)(botocore.hooks.EventAliaser({})._alias_event_name)
    botocore.hooks.EventAliaser._alias_event_name = lambda _, name: aliased(name)
    create_class = botocore.client.ClientCreator._create_client_class
    classes: dict[tuple[str, str], type] = {}

    def client_class(creator: Any, service: str, model: Any) -> type:
        key = (service, model.api_version)
        if key not in classes:
            classes[key] = create_class(creator, service, model)
        return classes[key]

    botocore.client.ClientCreator._create_client_class = client_class
