from berth.testing.builders import cluster as cluster
from berth.testing.builders import faults as faults
from berth.testing.builders import jobs as jobs
from berth.testing.check import PolicyError as PolicyError
from berth.testing.check import check_policy as check_policy
from berth.testing.scenario import Scenario as Scenario
