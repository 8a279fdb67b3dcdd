from .algorithms.dqn import DQNConfig as DQNConfig
from .algorithms.offline import CloningConfig as CloningConfig
from .algorithms.offline import OfflineDQNConfig as OfflineDQNConfig
from .algorithms.ppo import PPOConfig as PPOConfig
from .algorithms.sac import SACConfig as SACConfig
from .algorithms.td3 import TD3Config as TD3Config
from .distributed.fingerprint import fingerprint as fingerprint
from .errors import ConfigError as ConfigError
from .errors import MismatchError as MismatchError
from .errors import PeerError as PeerError
from .errors import RunError as RunError
from .launch.local import spawn as spawn
from .record.progress import Progress as Progress
from .record.run_dir import RunDir as RunDir
from .run import EnvConfig as EnvConfig
from .run import NetworkConfig as NetworkConfig
from .run import OfflineRun as OfflineRun
from .run import Run as Run
from .run import ScoreNetworkConfig as ScoreNetworkConfig
from .torch.checkpoint_manager import CheckpointManager as CheckpointManager
from .torch.comm import Comm as Comm
from .train import train as train
from .world import World as World
from .world import stream as stream
from .world import stream_seed as stream_seed

__version__: str
