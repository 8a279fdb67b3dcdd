"""`Comm` in one process: one device, several, uneven shards; arrays there and back; compiled once; same bits."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.distributed.tree import tree_sum
from lockstep.errors import ConfigError, MismatchError, RunError
from lockstep.world import World

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from lockstep.jax import hardware
from lockstep.jax.collectives.callback import Callback
from lockstep.jax.collectives.mesh import map_shards
from lockstep.jax.comm import Comm
from lockstep.system import nvidia

COLUMNS = 500
SCALE = np.linspace(0.1, 3.0, COLUMNS, dtype=np.float32)


def comm_of(num_shards, devices):
    return Comm(World().with_shards(num_shards), device="cpu", devices_per_process=devices)


def rows_of(num_shards):
    return np.random.default_rng(7).normal(size=(num_shards, COLUMNS)).astype(np.float32)


def scaled_sum(comm, rows):
    def scaled(shared, own):
        products = own["row"] * shared["scale"][None]
        return {"scale": shared["scale"], "sum": comm.sum_shards(products)}, {"product": products}

    shared, own = comm.spmd(scaled, donate=False)(
        comm.replicate({"scale": SCALE}), comm.shard([{"row": r} for r in rows])
    )
    return comm.read(shared)["sum"], np.stack([one["product"] for one in comm.unshard(own)])


@pytest.mark.parametrize("num_shards", [1, 4, 6, 7, 8])
def test_a_sum_over_shards_has_the_bits_of_the_tree_on_any_number_of_devices(num_shards):
    rows = rows_of(num_shards)
    products = rows * SCALE[None]
    tree = {(shard, shard + 1): row for shard, row in enumerate(products)}
    expected = tree_sum(tree, (0, num_shards), np.add)
    for devices in range(1, min(num_shards, 4) + 1):
        with comm_of(num_shards, devices) as comm:
            assert comm.num_slots == -(-num_shards // devices)
            total, held = scaled_sum(comm, rows)
            assert np.array_equal(total, expected), f"{(total != expected).sum()} numbers differ on {devices} devices"
            assert np.array_equal(held, products), "a shard got another's rows"
            assert not comm.num_messages


@pytest.mark.parametrize("devices", [1, 2])
def test_numbers_that_float32_does_not_hold_are_refused(devices):
    """In a world of one device, too: float64 came back rounded, and complex numbers without their imaginary part."""
    with comm_of(2, devices) as comm, jax.enable_x64(True):

        def said(kind, call):
            rows = [np.ones(2, kind)] * 2
            with pytest.raises(ConfigError) as error:
                comm.spmd(lambda shared, own: (call(own["x"][0]), own), donate=False)(
                    {}, comm.shard([{"x": row} for row in rows])
                )
            return str(error.value)

        gradients = said(np.float64, lambda x: comm.average_gradients({"w": x}))
        out = "and computes in float32: cast it to float32, or disable jax_enable_x64"
        assert gradients == f"average_gradients was given float64 in ['w'] {out}"
        assert said(np.float64, comm.mean) == f"mean was given float64 {out}"
        assert said(np.float64, comm.moments) == f"moments was given float64 {out}"
        assert said(np.complex64, comm.mean).endswith("complex64 and computes in float32: give its .real and .imag")


def test_what_is_no_tree_for_each_shard_or_no_pair_is_refused():
    with comm_of(1, 1) as comm:
        for parts in ({"x": np.ones(1)}, np.ones(1)):
            with pytest.raises(ConfigError, match=r"shard takes a list of one tree .*; give \[tree\]"):
                comm.shard(parts)
        for result in (lambda shared: shared, lambda _: None, lambda shared: (shared, shared, shared)):
            with pytest.raises(ConfigError, match="to spmd, which takes a pair; end it with return shared, own"):
                comm.spmd(lambda shared, own, result=result: result(shared), donate=False)({}, {})
        with pytest.raises(ConfigError, match=r"flag has shape \[2\], but a rank has one flag; give flag.any\(\)"):
            comm.any(np.array([True, False]))
        with pytest.raises(ConfigError, match="check_equal takes arrays by name, not a list"):
            comm.check_equal([np.ones(1)])
        for wrong, name in (({"a": None}, "a is a NoneType"), ({"a": {"b": ["x"]}}, r"a\.b\.0 is a str")):
            with pytest.raises(ConfigError, match=f"compares arrays and numbers, but {name}; leave it out"):
                comm.check_equal(wrong)
        with pytest.raises(ConfigError, match="read takes arrays on devices, not a ndarray; it is on the host already"):
            comm.read(np.ones(1))
        with pytest.raises(TypeError, match=r"or numpy arrays; convert it with np.asarray\(x\) or float\(x\)"):
            comm.broadcast_object(jnp.float32(3))


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("method", ["replicate", "read", "broadcast", "check_equal"])
def test_a_typed_random_key_is_refused_with_its_name(method, devices):
    words = rf"^{method} was given a typed random key of JAX in \['key'\]; give jax\.random\.key_data\(key\)"
    with comm_of(2, devices) as comm, pytest.raises(ConfigError, match=words):
        getattr(comm, method)({"x": jnp.ones(1), "key": jax.random.key(0)})


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_what_ranks_tell_each_other(devices):
    rows = rows_of(4)
    first = rows[:: 4 // devices]  # of each device, its first shard's
    with comm_of(4, devices) as comm:

        def told(shared, own):
            mine, weight = own["row"][0], own["weight"][0]
            return {
                "sum": comm.sum(mine),
                "counted": comm.sum(jnp.isfinite(mine)),
                "max": comm.max(mine),
                "mean": comm.mean(mine),
                "weighted": comm.mean(mine, weight),
                "lonely": comm.mean(jnp.where(weight > 1, mine, jnp.nan), jnp.where(weight > 1, weight, 0.0)),
                "moments": comm.moments(own["row"], own["weight"]),
                "nothing": (comm.moments(own["row"], 0 * own["weight"]), comm.average_gradients(mine, 0.0)),
                "gradients": comm.average_gradients({"b": mine[:2], "a": mine[2:6].reshape(2, 2)}, weight),
            }, {"number": comm.shard_numbers()}

        weights = np.arange(1, 5, dtype=np.float32) if devices > 1 else np.full(4, 2.0, np.float32)
        parts = [{"row": row, "weight": weight} for row, weight in zip(rows, weights, strict=True)]
        shared, own = comm.spmd(told)(comm.replicate({}), comm.shard(parts))
        found = comm.read(shared)
        assert [int(one["number"]) for one in comm.unshard(own)] == [0, 1, 2, 3]
    w = weights[:: 4 // devices, None]
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(found["sum"], first.sum(0), **close)
    np.testing.assert_array_equal(found["counted"], np.full(first.shape[1:], len(first)))
    np.testing.assert_array_equal(found["max"], first.max(0))
    np.testing.assert_allclose(found["mean"], first.mean(0), **close)
    weighted = (first * w).sum(0) / w.sum()
    np.testing.assert_allclose(found["weighted"], weighted, **close)
    np.testing.assert_allclose(found["gradients"]["b"], weighted[:2], **close)
    np.testing.assert_allclose(found["gradients"]["a"].ravel(), weighted[2:6], **close)
    heavy = w[:, 0] > 1
    np.testing.assert_allclose(found["lonely"], (first * w)[heavy].sum(0) / w[heavy].sum(), **close)
    assert not any(np.any(part) for part in jax.tree.leaves(found["nothing"])), "what weighs nothing is not 0"
    count, mean, variance = found["moments"]
    assert count == weights.sum()
    expected = np.average(rows, axis=0, weights=weights)
    np.testing.assert_allclose(mean, expected, **close)
    np.testing.assert_allclose(variance, np.average((rows - expected) ** 2, axis=0, weights=weights), **close)


@pytest.mark.parametrize("devices", [1, 4])
def test_moments_of_numbers_far_from_zero_keep_their_digits(devices):
    rows = (1e4 + rows_of(4)).astype(np.float32)
    with comm_of(4, devices) as comm:
        compiled = comm.spmd(lambda shared, own: ({"m": comm.moments(own)}, {}))
        _, _, variance = comm.read(compiled(comm.replicate({}), comm.shard(list(rows)))[0])["m"]
    np.testing.assert_allclose(variance, rows.astype(np.float64).var(0), rtol=2e-2)


@pytest.mark.parametrize("devices", [1, 2])
def test_no_gradient_passes_through_a_collective(devices):
    with comm_of(2, devices) as comm:

        def step(shared, own):
            def slope(collective):
                return jax.grad(lambda rows: collective(rows).sum())(own)

            return {
                "sum_shards": slope(comm.sum_shards),
                "sum": slope(comm.sum),
                "mean": slope(lambda rows: comm.mean(rows[0], rows[0, 0])),
                "max": slope(comm.max),
                "moments": slope(lambda rows: jnp.stack(comm.moments(rows, jnp.exp(rows[:, 0]))[1:])),
                "average_gradients": slope(lambda rows: comm.average_gradients(rows, rows[0, 0])),
            }, own

        slopes = comm.read(comm.spmd(step, donate=False)(comm.replicate({}), comm.shard(list(rows_of(2))))[0])
    assert [name for name, slope in slopes.items() if slope.any()] == []


@pytest.mark.parametrize("devices", [1, 2])
def test_moments_in_a_loop_ignore_what_weighs_nothing(devices):
    with comm_of(2, devices) as comm:

        def step(shared, own):
            rows = jnp.where(own["weight"][0][:, None] == 0, jnp.nan, own["rows"][0])
            return jax.lax.scan(lambda _, x: (comm.moments(rows * x, own["weight"][0]), x), shared, jnp.ones(3))[0], own

        part = {"rows": np.array([[1.0], [9.0], [3.0]], np.float32), "weight": np.array([1, 0, 1], np.float32)}
        shared = comm.replicate((np.float32(0), np.zeros(1, np.float32), np.zeros(1, np.float32)))
        found = comm.read(comm.spmd(step, donate=False)(shared, comm.shard([part, part]))[0])
    assert [float(x.item()) for x in found] == [2.0 * devices, 2.0, 1.0]


@pytest.mark.parametrize("devices", [1, 2])
def test_small_integers_are_added_as_int32_and_arrays_may_be_empty(devices):
    with comm_of(2, devices) as comm:

        def step(shared, own):
            empty = comm.sum(own[0, :0]), comm.sum_shards(jnp.zeros((len(own), 0)))
            return {"sum": comm.sum(own[0]), "max": comm.max(own[0]), "empty": empty}, own

        own = comm.shard([np.full(1, 100, np.int8)] * 2)
        found = comm.read(comm.spmd(step, donate=False)(comm.replicate({}), own)[0])
    assert (found["sum"].dtype, found["sum"].tolist()) == (np.int32, [100 * devices])
    assert (found["max"].dtype, found["max"].tolist()) == (np.int8, [100])
    assert [one.shape for one in found["empty"]] == [(0,), (0,)]


def test_one_device_refuses_what_several_would():
    def step(shared, own):
        with pytest.raises(ConfigError, match=r"weight has shape \[2\], but a rank has one weight"):
            comm.mean(own[0], jnp.ones(2))
        with pytest.raises(ConfigError, match="rows given: 3; needed: 2, one for each slot of a device"):
            comm.sum_shards(jnp.ones((3, 2)))
        return shared, own

    with comm_of(2, 1) as comm:
        comm.spmd(step, donate=False)(comm.replicate({}), comm.shard([np.ones(2, np.float32)] * 2))
        with pytest.raises(ConfigError, match="rows given: 1; needed: 2, one for each shard of this rank"):
            comm.sum_statistics(np.ones((1, 2)))
        with pytest.raises(ConfigError, match="parts given: 1; needed: 2, one for each shard of this rank"):
            comm.shard([np.ones(2)])


@pytest.mark.parametrize("seconds", [0, -1.0, np.nan, np.inf, None, "10"])
def test_timeouts_that_bound_nothing_are_refused(seconds):
    with pytest.raises(ConfigError, match=f"^timeout_s={seconds} must be a finite number"):
        Comm(World(), device="cpu", timeout_s=seconds)
    if seconds != np.inf:
        with pytest.raises(ConfigError, match=f"^startup_timeout_s={seconds} must be a number"):
            Comm(World(), device="cpu", startup_timeout_s=seconds)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_function_is_compiled_once_for_host_arrays_and_for_what_came_out(devices):
    compiled_by_xla = []

    def listen(name, _seconds, **_):
        compiled_by_xla.extend([name] * ("backend_compile" in name))

    with comm_of(2, devices) as comm:

        def count_up(shared, own):
            return {"n": shared["n"] + comm.sum_shards(own[:, None])[0]}, own + 1.0

        step = comm.spmd(count_up)
        shared, own = comm.replicate({"n": np.float32(0)}), comm.shard([np.float32(1), np.float32(2)])
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            for _ in range(3):
                shared, own = step(shared, own)
            shared, own = step(comm.replicate({"n": np.float32(0)}), comm.shard([np.float32(1), np.float32(2)]))
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        assert comm.num_compilations == {"count_up": 1}
        assert len(compiled_by_xla) == 1
        assert float(comm.read(shared)["n"]) == 3.0


@pytest.mark.parametrize("devices", [1, 2])
def test_arrays_on_devices_are_copies(devices):
    with comm_of(2, devices) as comm:
        mine = np.zeros(64, np.float32)
        shared = comm.replicate({"x": mine})
        mine[:] = 1.0
        assert comm.read(shared)["x"].sum() == 0.0, "what the host does afterwards is seen on the device"
        read = comm.read(shared)["x"]
        kept = read.copy()
        double = comm.spmd(lambda shared, own: ({"x": shared["x"] * 2.0 + 1.0}, own))
        shared, _ = double(shared, comm.shard([np.float32(0)] * 2))
        assert np.array_equal(read, kept), "what was read changes when the memory is used again"
        assert np.asarray(comm.local(shared)["x"]).tolist() == [1.0] * 64


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("method", ["sum", "max"])
def test_complex_numbers_are_refused_on_any_number_of_devices(devices, method):
    with (
        comm_of(devices, devices) as comm,
        pytest.raises(ConfigError, match=f"{method} was given complex64.*and .imag"),
    ):
        comm.spmd(lambda shared, own: (getattr(comm, method)(1 + 2j), own), donate=False)({}, {})


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(("kind", "narrower"), [(np.int64, "int32"), (np.float64, "float32")])
def test_numbers_of_64_bits_are_refused_on_any_number_of_devices(devices, kind, narrower):
    """On one device they were added; processes on CPUs do not exchange them."""
    with (
        comm_of(devices, devices) as comm,
        jax.enable_x64(True),
        pytest.raises(ConfigError, match=f"sum was given {np.dtype(kind)}.*cast it to {narrower}, or disable"),
    ):
        comm.spmd(lambda shared, own: (comm.sum(jnp.ones(2, kind)), own), donate=False)({}, {})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda comm: comm.check_equal({"n": 2**70}), "n is an int"),
        (lambda comm: comm.check_equal({"n": np.array(["a", None], object)}), "n is a ndarray"),
        (lambda comm: comm.check_equal({"a.b": 1.0, "a": {"b": 2.0}}), "two arrays of the name a.b"),
        (lambda comm: comm.sum_shards(jnp.ones((1, 2, 2))), r"rows has shape \[1, 2, 2\]; give \[K, n\]"),
        (lambda comm: comm.sum_shards(jnp.ones((1, 2), jnp.complex64)), "sum_shards was given complex64"),
        (lambda comm: comm.moments(1.0), "value has no rows"),
        (lambda comm: comm.moments(jnp.ones(2), jnp.ones(3)), r"weight has shape \[3\] for 2 rows"),
    ],
)
def test_what_several_ranks_refuse_one_device_refuses(call, words):
    with comm_of(1, 1) as comm, pytest.raises(ConfigError, match=words):
        call(comm)


def test_no_gradients_have_no_mean():
    with comm_of(1, 1) as comm:
        assert comm.average_gradients({}) == {}


def test_a_number_of_python_is_one_value():
    with comm_of(2, 2) as comm:
        shared, _ = comm.spmd(lambda shared, own: ((comm.sum(2.0), comm.max(3), comm.mean(4.0)), own), donate=False)(
            {}, {}
        )
        assert [float(value) for value in comm.read(list(shared))] == [4.0, 3.0, 4.0]


def test_facts_are_summed_in_float64_along_the_tree():
    rows = np.random.default_rng(0).normal(size=(7, 5)) * 1e9
    with comm_of(7, 1) as comm:
        expected = tree_sum({(s, s + 1): row for s, row in enumerate(rows)}, (0, 7), np.add)
        assert np.array_equal(comm.sum_statistics(rows), expected)
        assert comm.gather_object({"a": np.arange(2)})[0]["a"].tolist() == [0, 1]
        assert comm.any(True) is True
        assert comm.broadcast_object("x") == "x"
        assert [one.rank for one in comm.observe()] == [0]
        comm.barrier()
        comm.check_equal({"a": np.ones(1)})
        assert not comm.num_messages


def test_a_device_that_differs_is_named():
    with comm_of(2, 2) as comm:
        shared = comm.replicate({"x": np.zeros(3, np.float32)})["x"]
        comm.check_equal({"x": shared, "y": np.ones(2)})
        pieces = [jax.device_put(np.full(3, n, np.float32), device) for n, device in enumerate(comm.devices)]
        spoiled = jax.make_array_from_single_device_arrays((3,), shared.sharding, pieces)
        with pytest.raises(MismatchError, match="ranks 0 and 1 hold different x"):
            comm.check_equal({"x": spoiled, "y": np.ones(2)})
        with pytest.raises(MismatchError, match=r"ranks 0 and 1 hold different Dense_0\.kernel"):
            comm.check_equal({"Dense_0": {"kernel": spoiled, "bias": shared}})
        with pytest.raises(RunError, match="ranks 0, 1 collected the same data"):
            comm.check_different(["same", "same"])


def test_a_device_without_a_shard_is_refused():
    with pytest.raises(ConfigError, match=r"num_shards=3 is fewer than the 4 devices .*use fewer devices, or --set"):
        map_shards(World().with_shards(3), 4)


def test_shards_are_dealt_in_contiguous_blocks_of_each_process():
    dealt = map_shards(World(rank=1, size=2, port=1).with_shards(7), 2)
    assert dealt.shards == (range(2), range(2, 4), range(4, 6), range(6, 7))
    assert (dealt.own, dealt.num_slots) == (range(2, 4), 2)
    assert dealt.slots.tolist() == [[0, 1], [2, 3], [4, 5], [6, 6]]
    assert dealt.nodes is None, "the last device takes other steps"
    assert map_shards(World().with_shards(8), 4).nodes == [[(0, 2)], [(2, 4)], [(4, 6)], [(6, 8)]]
    assert map_shards(World().with_shards(6), 3).nodes is None


def test_more_devices_than_jax_has_are_refused():
    with pytest.raises(ConfigError, match="devices_per_process=9 with 1 process"), comm_of(9, 9):
        pass


def test_devices_and_backends_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(hardware, "gpu_available", lambda: False)
    assert hardware.kind_of("auto") == "cpu"
    with pytest.raises(ConfigError, match="device=cuda, but JAX sees no GPU"):
        hardware.kind_of("cuda")
    with pytest.raises(ConfigError, match="backend=nccl needs GPUs"):
        hardware.backend_of("cpu", "nccl")
    with pytest.raises(ConfigError, match="backend=gloo is for CPUs"):
        hardware.backend_of("gpu", "gloo")
    assert (hardware.backend_of("cpu", "auto"), hardware.backend_of("gpu", "auto")) == ("gloo", "nccl")


@pytest.mark.parametrize(("platforms", "refused"), [("cuda", True), ("gpuu", True), ("cuda,cpu", False), ("", False)])
def test_a_device_that_is_chosen_for_jax_is_not_replaced_by_the_cpu(monkeypatch, platforms, refused):
    monkeypatch.setattr(hardware, "gpu_available", lambda: False)
    monkeypatch.setattr(hardware, "_setting", {"jax_platforms": platforms or None}.get)
    assert hardware.kind_of("cpu") == "cpu"
    if not refused:
        assert hardware.kind_of("auto") == "cpu"
        return
    with pytest.raises(ConfigError, match=f"^JAX_PLATFORMS={platforms}, and Lockstep.* unset it, or use device=cpu"):
        hardware.kind_of("auto")


def test_flags_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true --xla_dump_to=/x")
    hardware.set_flags({"xla_cpu_multi_thread_eigen": "false", "xla_cpu_max_isa": "AVX2"})
    words = hardware.os.environ["XLA_FLAGS"].split()
    assert words == ["--xla_cpu_multi_thread_eigen=true", "--xla_dump_to=/x", "--xla_cpu_max_isa=AVX2"]


def test_a_callback_runs_each_time_also_in_a_scan_and_passes_errors_on():
    seen = []

    def halve(value, out):
        seen.append(float(value[0]))
        if value[0] > 7.5:
            raise KeyError("too large")
        np.copyto(out, value / 2)

    callback = Callback("halve", halve)

    @jax.jit
    def thrice(start):
        return jax.lax.scan(lambda carry, _: (callback(carry, (2,)) + 1.0, None), start, None, length=3)[0]

    assert thrice(jnp.array([4.0, 2.0])).tolist() == [2.25, 2.0]
    assert seen == [4.0, 3.0, 2.5]
    with pytest.raises((RuntimeError, ValueError), match="KeyError: 'too large'"):
        thrice(jnp.array([8.0, 2.0]))
    assert isinstance(callback.error, KeyError)
    with pytest.raises(TypeError, match="int16 cannot be sent between ranks"):
        callback(jnp.zeros(2, jnp.int16), (2,))


def test_peak_memory_is_that_of_the_gpu():
    class Gpu:
        platform = "gpu"

        def memory_stats(self):
            return {"peak_bytes_in_use": 12}

    assert hardware.peak_memory(Gpu()) == 12
    assert hardware.peak_memory(jax.devices()[0]) is None


def test_several_gpus_are_described_by_their_number_and_not_by_the_first():
    cpus = [SimpleNamespace(platform="cpu")] * 4
    gpus = [SimpleNamespace(platform="gpu", local_hardware_id=i, device_kind="NVIDIA H200") for i in range(2)]
    assert [hardware.describe(cpus[:1]), hardware.describe(cpus)] == ["cpu", "4 x cpu"]
    assert [hardware.describe(gpus[1:]), hardware.describe(gpus)] == ["cuda:1 (NVIDIA H200)", "2 x NVIDIA H200"]


def test_a_gpu_that_does_not_exist_is_named(monkeypatch):
    def refused(backend):
        raise RuntimeError(f"Unable to initialize backend '{backend}'\nand more")

    monkeypatch.setattr(jax, "local_devices", refused)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    world = World(rank=1, size=2, local_rank=1, local_size=2, port=1)
    with pytest.raises(ConfigError, match=r"local rank 1 was to compute on GPU 1 of CUDA_VISIBLE_DEVICES=0, .*'gpu'\)"):
        hardware.local_devices(world, "gpu", 1)
    with pytest.raises(RuntimeError, match="'cpu'"):
        hardware.local_devices(world, "cpu", 1)


@pytest.mark.parametrize(
    ("files", "visible", "found"),
    [
        ([], None, False),
        (["nvidiactl"], None, False),
        (["nvidia0"], None, True),
        (["nvidia3"], None, True),
        (["nvidia0"], "", False),
        (["nvidia0"], "-1", False),
        (["nvidia0"], "1", True),
    ],
)
def test_a_gpu_is_found_by_any_device_unless_none_is_visible(monkeypatch, tmp_path, files, visible, found):
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(nvidia, "_DEVICES", tmp_path)
    monkeypatch.setattr(nvidia, "DRIVER", tmp_path / "none")
    monkeypatch.setattr(nvidia, "find_spec", lambda name: name)
    monkeypatch.setattr(hardware, "_setting", lambda name: None)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.gpu_available() is found


def test_a_collective_of_compiled_code_outside_of_it_names_the_way_out():
    comm = Comm(World(rank=0, size=2), device="cpu")
    calls = (lambda: comm.sum(jnp.ones(3)), lambda: comm.moments(jnp.ones((3, 2)), tag="sum"))
    for call in calls:
        with pytest.raises(
            RunError, match=r"sum was called outside .* compiled by comm\.spmd\(function\); outside, sum_"
        ):
            call()


def test_one_device_has_its_own_mean_and_takes_collectives_in_a_loop():
    def step(shared, own):
        def body(total, x):
            return comm.sum(total + x), comm.mean(x, 0.1)

        total, means = jax.lax.scan(body, jnp.zeros(2), jnp.ones((3, 2)))
        own_mean = comm.mean(shared["narrow"], 30_000.0)
        return {"total": total, "means": means, "narrow": own_mean, "ignored": comm.mean(total, 0.0)}, own

    with comm_of(1, 1) as comm:
        shared = comm.replicate({"narrow": np.full(1, 3, np.float16)})
        found = comm.read(comm.spmd(step, donate=False)(shared, comm.shard([{"x": np.zeros(1, np.float32)}]))[0])
        assert found["total"].tolist() == [3.0, 3.0]
        assert found["means"].tolist() == [[1.0, 1.0]] * 3
        assert found["narrow"].dtype == np.float16
        assert found["narrow"].tolist() == [3.0]
        assert found["ignored"].tolist() == [3.0, 3.0]
