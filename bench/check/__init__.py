"""The conformance kit: checks that an optimizer behaves as training code expects of any `torch.optim.Optimizer`.

In the tests of your optimizer:

    from bench.check import conformance

    def test_conformance():
        # The module's class, or the class itself, an OptimizerSpec, "file.py:MyOptimizer".
        report = conformance("my_package.my_module:MyOptimizer")
        assert report.ok, report.text()

The checks are listed in `bench/check/catalogue.py`. They run in a separate process, on small problems on the CPU.
Importing this package imports no torch.
"""

from bench.check.report import Report, Verdict, write_verdict
from bench.check.supervisor import conformance

__all__ = ["Report", "Verdict", "conformance", "write_verdict"]
