from .make import env_spec as env_spec
from .make import make_vector_env as make_vector_env
from .spec import ActionSpec as ActionSpec
from .spec import EnvSpec as EnvSpec
from .state import SavableEnv as SavableEnv
from .vector import VectorEnv as VectorEnv
