"""Privacy accounting inside JAX training loops: accountants, filters and an optax wrapper."""

from jaxdp.training._accountant import DEFAULT_ORDERS as DEFAULT_ORDERS
from jaxdp.training._accountant import FixedAccountant as FixedAccountant
from jaxdp.training._accountant import RenyiAccountant as RenyiAccountant
from jaxdp.training._accountant import epsilon as epsilon
from jaxdp.training._accountant import init as init
from jaxdp.training._accountant import init_fixed as init_fixed
from jaxdp.training._accountant import update as update
from jaxdp.training._filter import PrivacyFilter as PrivacyFilter
from jaxdp.training._filter import fits as fits
from jaxdp.training._filter import init_filter as init_filter
from jaxdp.training._optax import TrackPrivacyState as TrackPrivacyState
from jaxdp.training._optax import accountant_of as accountant_of
from jaxdp.training._optax import track_privacy as track_privacy
