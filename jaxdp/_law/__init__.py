"""The likelihood-ratio engine."""

from jaxdp._law._aimed import aimed_bounds as aimed_bounds
from jaxdp._law._loss_law import loss_law as loss_law
from jaxdp._law._query import cap_epsilons as cap_epsilons
from jaxdp._law._query import cap_log_deltas as cap_log_deltas
from jaxdp._law._query import end_of as end_of
from jaxdp._law._query import epsilon_bounds as epsilon_bounds
from jaxdp._law._query import log_delta_bounds as log_delta_bounds
from jaxdp._law._query import log_delta_estimate as log_delta_estimate
from jaxdp._law._query import reflected as reflected
from jaxdp._law._table import Table as Table
from jaxdp._law._table import cut as cut
from jaxdp._law._table import table as table
from jaxdp._law._terms import AnyDirection as AnyDirection
from jaxdp._law._terms import Bounds as Bounds
from jaxdp._law._terms import Family as Family
from jaxdp._law._terms import Flag as Flag
from jaxdp._law._terms import Sides as Sides
from jaxdp._law._terms import Sign as Sign
from jaxdp._law._terms import Term as Term
from jaxdp._law._terms import Terms as Terms
from jaxdp._law._terms import either as either
from jaxdp._law._terms import may_add as may_add
from jaxdp._law._terms import one_of as one_of
from jaxdp._law._terms import orient_one as orient_one
from jaxdp._law._terms import oriented as oriented
from jaxdp._law._terms import sign_of as sign_of
