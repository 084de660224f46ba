"""Matrix mechanisms: correlated noise, certified under random batches."""

from jaxdp._matrix._mechanism import MatrixMechanism as MatrixMechanism
