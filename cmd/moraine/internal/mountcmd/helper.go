package mountcmd

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mount(8) starts /sbin/mount.moraine for a line of /etc/fstab with the type moraine, with
// SOURCE DIR -o OPTIONS. For the type fuse.moraine it starts mount.fuse, which starts
// `moraine SOURCE DIR -o OPTIONS`. The functions here make the command line of `moraine mount`
// of both.

// The exit codes of a helper, as mount(8) defines them.
const (
	helperWrongUse = 1
	helperFailed   = 32
)

// helperNames are the names by which mount(8) starts this program.
var helperNames = []string{"mount.moraine", "mount.fuse.moraine"}

// IsHelperCall reports whether mount(8) started this program as its helper.
func IsHelperCall(argv []string) bool {
	if len(argv) == 0 {
		return false
	}
	return slices.Contains(helperNames, filepath.Base(argv[0])) ||
		len(argv) > 2 && strings.HasPrefix(argv[1], cli.RemotePrefix) && slices.Contains(argv, "-o")
}

// HelperExit is the exit code of a helper for one of a command.
func HelperExit(code int) int {
	switch code {
	case cli.ExitFine:
		return 0
	case cli.ExitWrongUse:
		return helperWrongUse
	}
	return helperFailed
}

// HelperArgs returns the command line of `moraine mount` for that of a helper; command is
// `moraine mount`. None: nothing is to be done (mount -f).
func HelperArgs(command *cobra.Command, argv []string) (args []string, err error) {
	h := helperCall{command: command}
	if err := h.read(argv[1:]); err != nil {
		return nil, err
	}
	if len(h.places) != 2 {
		return nil, cli.UsageError("the form is `%s SOURCE DIR [-o OPTION,...]`", filepath.Base(argv[0]))
	}
	if h.fake {
		return nil, nil
	}
	// mount.fuse allows type#source too.
	source := strings.TrimPrefix(h.places[0], "moraine#")
	args = []string{"mount", source, h.places[1]}
	for _, o := range h.options {
		flag, err := h.flag(o)
		if err != nil && !h.sloppy {
			return nil, err
		}
		if flag != "" {
			args = append(args, flag)
		}
	}
	return args, nil
}

// helperCall is the command line of a helper.
type helperCall struct {
	command         *cobra.Command
	places, options []string
	fake, sloppy    bool
}

func (h *helperCall) read(args []string) error {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "-o" || arg == "-t" || arg == "-N":
			if len(args) == 0 {
				return cli.UsageError("%s: its value is missing", arg)
			}
			if arg == "-o" {
				h.options = append(h.options, strings.Split(args[0], ",")...)
			} else if arg == "-N" {
				return cli.UsageError("-N: the helper cannot mount in another namespace; use nsenter")
			}
			args = args[1:]
		case strings.HasPrefix(arg, "-o") && len(arg) > 2:
			h.options = append(h.options, strings.Split(arg[2:], ",")...)
		case strings.HasPrefix(arg, "-") && strings.Trim(arg[1:], "sfnvrw") == "" && len(arg) > 1:
			h.fake, h.sloppy = h.fake || strings.Contains(arg, "f"), h.sloppy || strings.Contains(arg, "s")
			if strings.Contains(arg, "r") {
				h.options = append(h.options, "ro")
			}
		case strings.HasPrefix(arg, "-"):
			return cli.UsageError("option %q is unknown: mount options follow -o", arg)
		default:
			h.places = append(h.places, arg)
		}
	}
	return nil
}

// forOthers are options of a line in /etc/fstab that are for mount(8), systemd or the kernel's
// defaults, or that each mount has. A mount never has devices or set-user-ID programs.
var forOthers = []string{"", "rw", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group",
	"exec", "async", "suid", "nosuid", "dev", "nodev", "nodiratime",
	"default_permissions"}

// ofAtimes are the flags for what mount(8) says of atimes. The last one given counts, as for mount(8). Others
// (strictatime, norelatime, diratime) are refused as unknown: a mount does not do what they say.
var ofAtimes = map[string]string{"atime": "--noatime=false", "relatime": "--noatime=false", "noatime": "--noatime"}

// hidden are flags that a mount of a table must not have: the helper returns when the mount is ready.
var hidden = []string{"foreground", "ready-fd", "help", "json"}

// flag returns the flag of `moraine mount` for an option; empty: there is none to give.
func (h *helperCall) flag(option string) (string, error) {
	if slices.Contains(forOthers, option) || strings.HasPrefix(option, "x-") || strings.HasPrefix(option, "X-") || strings.HasPrefix(option, "comment=") {
		return "", nil
	}
	if option == "ro" {
		return "--read-only", nil
	}
	if flag, ok := ofAtimes[option]; ok {
		return flag, nil
	}
	name, value, given := strings.Cut(option, "=")
	name = strings.ReplaceAll(name, "_", "-")
	f := h.lookup(name)
	switch {
	case f == nil || slices.Contains(hidden, name):
		return "", cli.UsageError("mount option %q is unknown: `moraine mount --help` lists the flags, each of which is an option FLAG=VALUE", option)
	case !given && f.NoOptDefVal == "":
		return "", cli.UsageError("mount option %q needs a value: write %s=VALUE", option, name)
	case !given:
		return "--" + name, nil
	}
	return "--" + name + "=" + value, nil
}

// lookup finds a flag of the command or of all commands.
func (h *helperCall) lookup(name string) *pflag.Flag {
	if f := h.command.Flags().Lookup(name); f != nil {
		return f
	}
	return h.command.InheritedFlags().Lookup(name)
}
