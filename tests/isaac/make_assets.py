"""Write the files of `Isaac-Cartpole` and `Isaac-Ant` that Isaac Lab would fetch from a server.

The robots are those that the package newton contains; the ground is a plane. Usage: make_assets.py FOLDER
"""

import pathlib
import sys

import newton
from pxr import Sdf, Usd, UsdGeom, UsdPhysics

ROBOTS = {
    "Isaac/IsaacLab/Robots/Classic/Cartpole/cartpole.usd": ("cartpole_single_pendulum.usda", "cartpole"),
    "Isaac/Robots/IsaacSim/Ant/ant_instanceable.usd": ("ant.usda", "ant"),
}
GROUND = "Isaac/IsaacLab/Environments/Grid/default_ground_plane_checker_v1/default_ground_plane.usda"
CARTPOLE_JOINTS = {  # kind of the joint, largest velocity: as in the robot's description of Isaac Lab
    "/cartpole/slider/slider_to_cart": ("linear", 100.0),
    "/cartpole/cart/cart_to_pole": ("angular", 458.36624),
}


def main(folder: pathlib.Path) -> None:
    examples = pathlib.Path(newton.__file__).parent / "examples" / "assets"
    for target, (source, prim) in ROBOTS.items():
        layer = Sdf.Layer.CreateAnonymous(".usda")
        layer.TransferContent(Sdf.Layer.FindOrOpen(str(examples / source)))
        layer.defaultPrim = prim
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        layer.Export(str(folder / target))
    add_drives(folder / next(iter(ROBOTS)))
    write_ground(folder / GROUND)


def add_drives(path: pathlib.Path) -> None:
    """Joints without stiffness and damping that accept efforts, which newton's copy leaves out."""
    stage = Usd.Stage.Open(str(path))
    for name, (kind, max_velocity) in CARTPOLE_JOINTS.items():
        joint = stage.GetPrimAtPath(name)
        drive = UsdPhysics.DriveAPI.Apply(joint, kind)
        drive.CreateTypeAttr("force")
        drive.CreateMaxForceAttr(1000.0)
        drive.CreateStiffnessAttr(0.0)
        drive.CreateDampingAttr(0.0)
        for attribute, value in (("maxJointVelocity", max_velocity), ("jointFriction", 0.0)):
            joint.CreateAttribute(f"physxJoint:{attribute}", Sdf.ValueTypeNames.Float).Set(value)
        schemas = Sdf.TokenListOp()
        present = joint.GetMetadata("apiSchemas").prependedItems
        schemas.prependedItems = [*present, "PhysxJointAPI", f"PhysicsJointStateAPI:{kind}"]
        joint.SetMetadata("apiSchemas", schemas)
    stage.Save()


def write_ground(path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    stage = Usd.Stage.CreateNew(str(path))
    UsdGeom.SetStageUpAxis(stage, "Z")
    UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    world = UsdGeom.Xform.Define(stage, "/World")
    stage.SetDefaultPrim(world.GetPrim())
    UsdGeom.Xform.Define(stage, "/World/Environment").AddScaleOp(UsdGeom.XformOp.PrecisionDouble).Set((1.0, 1.0, 1.0))
    mesh = UsdGeom.Mesh.Define(stage, "/World/Environment/Geometry")
    mesh.CreatePointsAttr([(x, y, 0.0) for x, y in ((-50, -50), (50, -50), (50, 50), (-50, 50))])
    mesh.CreateFaceVertexCountsAttr([4])
    mesh.CreateFaceVertexIndicesAttr([0, 1, 2, 3])
    UsdGeom.PrimvarsAPI(mesh).CreatePrimvar("st", Sdf.ValueTypeNames.TexCoord2fArray, UsdGeom.Tokens.vertex).Set(
        [(0, 0), (1, 0), (1, 1), (0, 1)]
    )
    plane = UsdGeom.Plane.Define(stage, "/World/CollisionPlane")
    plane.CreateAxisAttr("Z")
    plane.CreatePurposeAttr("guide")
    UsdPhysics.CollisionAPI.Apply(plane.GetPrim())
    stage.Save()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
