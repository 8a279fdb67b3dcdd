"""The cart-pole of Isaac Lab's `Isaac-Cartpole`: spec, equations of motion and reward, for numpy, torch and JAX arrays.

Observation, action, resets, reward terms and weights, termination, episode length and control rate follow Isaac Lab's
`isaaclab_tasks/core/cartpole/cartpole_manager_env_cfg.py`, effort limit and damping
`isaaclab_assets/robots/cartpole.py` (https://github.com/isaac-sim/IsaacLab). Masses, centre of mass and inertia were
measured on Isaac Lab 3.0.0 with its default physics (Newton), as was the integration scheme; with them states and
rewards agree to 1e-5 over 20 steps. Newton does not apply the effort limit; PhysX does, as here.

All functions take arrays of any shape, elementwise.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError

_PHYSICS_STEP = 1 / 120
_SUBSTEPS = 2
_CONTROL_STEP = _PHYSICS_STEP * _SUBSTEPS
_ACTION_SCALE = 100.0
"""Newtons per unit of action."""
_EFFORT_LIMIT = 400.0
_CART_DAMPING = 10.0
_GRAVITY = 9.81
_CART_BOUND = 3.0
_CENTRE = 0.47
"""Distance of the pole's centre of mass from the joint, per metre of the pole."""
_INERTIA = 0.0836333
"""Inertia of a pole of 1 kg and 1 m about its centre of mass."""
START = (1.0, math.pi / 4, 0.5, math.pi / 4)
"""An episode starts with a state drawn uniformly between -START and START."""


class CartpoleState(NamedTuple):
    """Arrays of one shape. The observation has them in this order."""

    position: Any
    """Of the cart, in m."""
    angle: Any
    """Of the pole, in rad: 0 is upright; not wrapped."""
    velocity: Any
    """Of the cart."""
    spin: Any
    """Angular velocity of the pole."""


@dataclass(frozen=True, slots=True)
class CartpoleDynamics:
    """The equations of motion. Masses are in kg; `pole_length`, in m, scales centre of mass and inertia."""

    cart_mass: float = 1.0
    pole_mass: float = 1.0
    pole_length: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what has no mass or no length."""
        for name in ("cart_mass", "pole_mass", "pole_length"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"env.kwargs {name}={value} must be greater than 0")

    def advance(self, xp: Any, state: CartpoleState, action: Any) -> CartpoleState:
        """The state after a control step of 1/60 s, in two steps of semi-implicit Euler with implicit damping.

        With c = cos(angle), n = sin(angle), l the distance of the centre of mass, I the inertia about it, d the damping
        of the cart and h the physics step, a step solves

            [[m_cart + m_pole + d h,  -m_pole l c       ]]   [acceleration]   [F - d velocity - m_pole l spin^2 n]
            [[-m_pole l c,             I + m_pole l^2   ]] * [spin_rate   ] = [m_pole l g n                      ]

        Args:
            xp: numpy, `torch` or `jax.numpy`.
            state: float32.
            action: float32, in units of 100 N.
        """
        position, angle, velocity, spin = state
        effort = xp.clip(_ACTION_SCALE * action, -_EFFORT_LIMIT, _EFFORT_LIMIT)
        length = _CENTRE * self.pole_length
        moment = self.pole_mass * length
        of_cart = self.cart_mass + self.pole_mass + _CART_DAMPING * _PHYSICS_STEP
        of_pole = _INERTIA * self.pole_mass * self.pole_length**2 + moment * length
        for _ in range(_SUBSTEPS):
            sine, coupling = xp.sin(angle), moment * xp.cos(angle)
            force = effort - _CART_DAMPING * velocity - moment * spin * spin * sine
            torque = (moment * _GRAVITY) * sine
            step = _PHYSICS_STEP / (of_cart * of_pole - coupling * coupling)
            velocity, spin = (
                velocity + step * (of_pole * force + coupling * torque),
                spin + step * (of_cart * torque + coupling * force),
            )
            position = position + _PHYSICS_STEP * velocity
            angle = angle + _PHYSICS_STEP * spin
        return CartpoleState(position, angle, velocity, spin)


def reward_and_terminated(xp: Any, state: CartpoleState) -> tuple[Any, Any]:
    """The reward of a step, and whether it ended the episode, from the state after it.

    1/60 of: 1, or -2 where the cart is outside [-3, 3]; - angle^2, wrapped to [-pi, pi]; - 0.01 |velocity|;
    - 0.005 |spin|.
    """
    terminated = xp.abs(state.position) > _CART_BOUND
    wrapped = xp.remainder(state.angle + math.pi, 2 * math.pi) - math.pi
    alive = 1.0 - wrapped * wrapped - 0.01 * xp.abs(state.velocity) - 0.005 * xp.abs(state.spin)
    return _CONTROL_STEP * xp.where(terminated, alive - 3.0, alive), terminated


def cartpole_spec(max_episode_steps: int, *, separately_seedable: bool) -> EnvSpec:
    """Sizes and conventions of the task."""
    if max_episode_steps < 1:
        raise ConfigError(f"max_episode_steps={max_episode_steps} must be at least 1")
    return EnvSpec(
        observation_size=4,
        action=ActionSpec("continuous", (1,), (-math.inf,), (math.inf,)),
        autoreset="same_step",
        separately_seedable=separately_seedable,
        reward_threshold=4.85,  # ours: a tuned linear feedback returns 4.95
        max_episode_steps=max_episode_steps,
    )
