"""`python -m lockstep.cli ...` is `lockstep ...`; launchers also start ranks with it."""

from lockstep.launch.child import die_with_launcher

if __name__ == "__main__":
    die_with_launcher()
    from lockstep.cli.main import console

    console()
