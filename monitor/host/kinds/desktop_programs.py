"""Desktop programs: what draws on the screen, and programs with a window. Add one here, as a name in the row."""

from .known_program import KnownProgram

_DISPLAY = (
    *("X", "Xorg", "Xorg.bin", "Xwayland", "Xvfb", "gnome-shell", "gnome-session-b*", "mutter*", "gdm-x-session"),
    *("kwin_x11", "kwin_wayland", "plasmashell", "ksmserver", "krunner", "sddm-greeter*", "xdg-desktop-por*"),
    *(
        "sway",
        "Hyprland",
        "weston",
        "gamescope*",
        "cinnamon",
        "muffin",
        "marco",
        "xfwm4",
        "xfdesktop",
        "picom",
        "compiz",
    ),
    *("niri", "river", "cosmic-*", "budgie-wm", "gala", "wayfire", "labwc", "nxagent", "Xvnc", "kitty", "alacritty"),
    *("ghostty", "wezterm-gui", "gjs", "nautilus", "dolphin"),
)
_WINDOWS = (
    *("firefox*", "GeckoMain", "Isolated Web Co", "Web Content", "thunderbird*", "chrome", "chromium*", "brave*"),
    *("msedge", "opera", "vivaldi-bin", "steam", "steamwebhelper", "code", "cursor", "electron", "slack", "discord"),
    *("Discord", "spotify", "zoom", "teams", "teams-for-linux", "obs", "vlc", "mpv", "gimp*", "krita"),
    *("parsecd", "sunshine", "nomachine", "obsidian", "signal-desktop", "telegram-deskto*", "nvidia-settings"),
    *("zed-editor", "anydesk", "rustdesk", "soffice.bin"),
)

DESKTOP = (KnownProgram(kind="desktop", name=None, executables=(*_DISPLAY, *_WINDOWS)),)
