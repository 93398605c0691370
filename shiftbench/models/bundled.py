"""`xcit_nano_12_p16_af.TAG`, or a folder that training exported: the models of `aft_models`."""

from __future__ import annotations
