from .normalize import RunningMoments as RunningMoments
from .replay import Replay as Replay
from .replay import Transitions as Transitions
from .rollout import Collector as Collector
from .rollout import Rollout as Rollout
