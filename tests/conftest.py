"""What holds for all tests: how long something takes never decides one."""

from hypothesis import HealthCheck, settings

settings.register_profile("calm", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")
