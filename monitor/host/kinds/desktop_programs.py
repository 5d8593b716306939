"""Desktop programs: what draws on the screen, and programs with a window. Add one here, as a name in the row."""

from .known_program import KnownProgram

DESKTOP = (
    KnownProgram(
        kind="desktop", name=None,
        executables=(
            "Xorg", "Xwayland", "X", "gnome-shell", "kwin_x11", "kwin_wayland", "plasmashell", "mutter", "sway",
            "Hyprland", "cinnamon", "xfwm4", "marco", "compiz", "weston", "gamescope*", "firefox*", "chrome", "brave",
            "chromium*", "msedge", "opera", "steam", "steamwebhelper", "code", "slack", "discord", "spotify",
        ),
    ),
)  # fmt: skip
