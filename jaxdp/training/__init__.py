"""Privacy accounting inside JAX training loops: accountants, filters, an optax wrapper; batches."""

from jaxdp.training._accountant import DEFAULT_ORDERS as DEFAULT_ORDERS
from jaxdp.training._accountant import FixedAccountant as FixedAccountant
from jaxdp.training._accountant import RenyiAccountant as RenyiAccountant
from jaxdp.training._accountant import epsilon as epsilon
from jaxdp.training._accountant import init as init
from jaxdp.training._accountant import init_fixed as init_fixed
from jaxdp.training._accountant import update as update
from jaxdp.training._batches import Batch as Batch
from jaxdp.training._batches import allocation_batches as allocation_batches
from jaxdp.training._batches import cyclic_poisson_batch as cyclic_poisson_batch
from jaxdp.training._batches import fixed_size_batch as fixed_size_batch
from jaxdp.training._batches import min_sep_batches as min_sep_batches
from jaxdp.training._batches import parallel_groups as parallel_groups
from jaxdp.training._batches import poisson_batch as poisson_batch
from jaxdp.training._batches import shuffled_batches as shuffled_batches
from jaxdp.training._filter import PrivacyFilter as PrivacyFilter
from jaxdp.training._filter import fits as fits
from jaxdp.training._filter import init_filter as init_filter
from jaxdp.training._optax import TrackPrivacyState as TrackPrivacyState
from jaxdp.training._optax import accountant_of as accountant_of
from jaxdp.training._optax import track_privacy as track_privacy
