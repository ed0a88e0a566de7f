// Package mountcmd has the commands mount and umount.
//
// One path through it: `moraine mount` -> MountInBackground starts a process that serves the
// mount (background.go) -> that process writes a record (record.go) -> `moraine umount` finds
// the process by the record, and waits until it has ended.
package mountcmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/fuse"
	"github.com/spf13/cobra"
)

// MountOptions are the flags of `moraine mount`.
type MountOptions struct {
	foreground  bool
	allowOther  bool
	readOnly    bool
	noXattrs    bool
	noAtime     bool
	memory      cli.SizeFlag
	cache       int
	delegation  bool
	node        nodeCache
	bandwidth   bandwidth
	owners      owners
	prefetch    []string
	patience    time.Duration
	scheme      string
	ack         string // empty: nvme
	level       moraine.Level
	LogFile     string
	adminListen string
	accessLog   string
	profile     string
	readyFD     int
	daemonFD    int
	unguarded   bool // no supervisor
	upgrade     bool
}

// minMountMemory is the least memory for a mount: stripes of the widest scheme, and some
// requests of the kernel.
const minMountMemory = 64 << 20

// NewMountCommand returns `moraine mount`.
func NewMountCommand(env *cli.Env) *cobra.Command {
	o := MountOptions{memory: 1 << 30}
	cmd := &cobra.Command{
		Use:     "mount ADDRESS DIR",
		GroupID: cli.GroupFiles,
		Short:   "Mount a directory of a cluster as a file system",
		Long: `Mount the directory ADDRESS on the existing local directory DIR, by FUSE. ADDRESS is
moraine://HOST,HOST/PATH, or moraine:///PATH where --endpoint names the hosts. The command
returns when DIR can be used. A background process serves the mount until "moraine umount
DIR". With --foreground the command serves the mount itself, and Ctrl-C unmounts it.

close and fsync return when the written bytes are on the disks of the cluster, with the
protection of its scheme. They fail if the bytes are not there. With --ack memory, close
returns when the bytes are verified in the memory of the hosts that get their chunks. The
hosts write them to their disks at once. fsync, and writes to a file that was opened with
O_SYNC, still wait for the disks. With --ack local, close of a file of up to 16 KiB that the
mount made in a directory where it works alone (see below) waits for nothing. The mount sends
the file within milliseconds. If it is killed, the last of these files are lost. Other files
are as with memory. A program that opens the file after that, on any mount,
reads these bytes. The mount caches nothing that could be stale. With --cache-dir it keeps
bytes that programs have read on a local disk, for all mounts of the node that name the same
directory, also after they are restarted. Calls wait while the cluster elects a leader or
restarts, up to --patience. Ctrl-C ends those that have waited for a second.

While a mount works alone in a directory, it makes, renames and removes entries by itself,
and sends them some milliseconds later. If it dies it loses the last of them, but nothing
that an fsync, or a close of written bytes, waited for. With --delegation=false each of these
calls waits until the servers have it.

A small process, the supervisor, keeps the mount open and starts the process that serves it, the
daemon. If the daemon crashes, the supervisor starts another one, and open files stay open. What was
written and not committed is then lost, which fsync or close reports with EIO. "moraine mount
--upgrade DIR" has the daemon replaced by one of the version that you run, without loss.

The mount allows what its certificate allows. Its --scope is the root of the mount. Root's
files belong to nobody, unless the certificate was issued with --no-squash. Within that,
mode, owner and group decide, as on a local disk.`,
		Example: `  moraine mount moraine://host1,host2,host3/ /mnt/moraine --certs ./alice
  moraine mount moraine:///datasets /data --read-only --foreground
  moraine mount moraine:///datasets /data --bandwidth-limit 500MB
  moraine mount moraine:///models /models --read-only --prefetch '*.safetensors,*.bin'
  moraine mount --upgrade /mnt/moraine
  moraine umount /mnt/moraine`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.upgrade {
				return cobra.ExactArgs(1)(cmd, args)
			}
			return cobra.ExactArgs(2)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.upgrade {
				return upgradeMount(cmd.Context(), env, args[0])
			}
			return mount(cmd.Context(), env, o, args[0], args[1])
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.foreground, "foreground", "f", false, "stay in the foreground, and log to standard error")
	f.BoolVar(&o.allowOther, "allow-other", os.Geteuid() == 0, "let other users in, with the rights of "+
		"modes and owners (users other than root need user_allow_other in /etc/fuse.conf)")
	f.BoolVar(&o.readOnly, "read-only", false, "mount read-only")
	f.BoolVar(&o.noXattrs, "no-xattrs", false, "mount without extended attributes, which ls and cp request for each file: a listing by ls -lR then takes the mount half of the work. "+
		"Access control lists are attributes: such a mount shows none, and decides by mode, owner and group alone")
	f.BoolVar(&o.noAtime, "noatime", false, "let reads change no atime; otherwise a read raises it as relatime says, and the servers get that within a minute")
	f.Var(&o.memory, "memory", "bound of the memory for file data")
	f.IntVar(&o.cache, "cache-entries", cli.DefaultCache, cli.CacheUsage)
	f.BoolVar(&o.delegation, "delegation", true, "make and remove entries and small files in this process, and send them a "+
		"few milliseconds later, while no other client works in the directory")
	o.node.addFlags(f)
	o.bandwidth.addFlags(f)
	o.owners.addFlags(f)
	f.StringSliceVar(&o.prefetch, "prefetch", nil, "read files with these names whole, in the background, when a program opens them for reading: files that loaders map "+
		"and read completely, such as '*.safetensors,*.distcp,*.bin'. The bytes become pages of the kernel, or go to --cache-dir (default: none)")
	f.DurationVar(&o.patience, "patience", 5*time.Minute, "how long a call takes at most before it "+
		"fails, if servers do not answer")
	f.StringVar(&o.scheme, "scheme", "", cli.SchemeUsage)
	f.StringVar(&o.ack, "ack", "nvme", "level that close waits for: nvme, memory (faster; lost if "+
		"more hosts fail at once than the scheme survives) or local (as memory, but small files in delegated directories wait for nothing: "+
		"a mount that is killed loses the last of them)")
	f.StringVar(&o.LogFile, "log-file", "", "log file of the background process (default: in "+
		"/run/moraine or the user's runtime directory)")
	f.StringVar(&o.adminListen, "admin-listen", "", "address of /metrics, /healthz and /debug/pprof (default: none)")
	f.StringVar(&o.accessLog, "access-log", "", "file that gets a line for each operation; SIGHUP opens it again")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile to this file")
	f.BoolVar(&o.unguarded, "no-supervisor", false, "serve in one process: if it crashes the mount ends")
	f.BoolVar(&o.upgrade, "upgrade", false, "have the running mount on DIR served by this version of the "+
		"program: open files stay open")
	f.IntVar(&o.readyFD, "ready-fd", 0, "of the background process: where it reports that it is ready")
	f.IntVar(&o.daemonFD, "daemon-fd", 0, "of the process that a supervisor started: its end of their socket")
	for _, hidden := range []string{"ready-fd", "daemon-fd", "cpuprofile"} {
		_ = f.MarkHidden(hidden) // it is defined above
	}
	return cmd
}

func mount(ctx context.Context, env *cli.Env, o MountOptions, address, dir string) error {
	loc, err := cli.ParseRemote(address)
	if err != nil {
		return err
	}
	if o.memory < minMountMemory {
		return cli.UsageError("--memory %s: a mount needs at least %s", o.memory.String(), cli.Size(minMountMemory))
	}
	if o.ack != "" {
		if o.level, err = cli.MountAckLevel(o.ack); err != nil {
			return err
		}
	}
	// The background process needs no working directory.
	if env.Global.Certs, err = absolute(env.Global.Certs); err != nil {
		return err
	}
	if dir, err = absolute(dir); err != nil {
		return err
	}
	if o.accessLog, err = absolute(o.accessLog); err != nil {
		return err
	}
	serve := supervise
	if o.unguarded {
		serve = serveMount
	}
	switch {
	case o.daemonFD > 0:
		return serveSupervised(ctx, env, o, loc, dir)
	case o.readyFD > 0:
		return mountForParent(ctx, env, o, loc, dir, serve)
	}
	if _, err := env.Security(); err != nil {
		return err
	}
	if err := checkMountPoint(env, dir); err != nil {
		return err
	}
	if o.foreground {
		return serve(ctx, env, o, loc, dir, func() { env.Note("%s is mounted on %s. Ctrl-C unmounts it.", loc, dir) })
	}
	return MountInBackground(ctx, env, o, loc, dir)
}

// absolute is filepath.Abs that does not change an empty path.
func absolute(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	return filepath.Abs(path)
}

// checkMountPoint fails where dir is not a place to mount on. It first unmounts a mount
// whose process has died, since nobody can use it.
func checkMountPoint(env *cli.Env, dir string) error {
	if fuse.IsDead(dir) {
		env.Note("A mount on %s had lost its process; the command has unmounted it.", dir)
		if err := fuse.Detach(dir); err != nil {
			return err
		}
	}
	st, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("%w: make the directory to mount on first", err)
	case !st.IsDir():
		return cli.UsageError("%s is a file: name a directory to mount on", dir)
	}
	mounted, err := fuse.IsMounted(dir)
	if err == nil && mounted {
		err = fmt.Errorf("%s has a mount already: remove it first with `moraine umount %s`", dir, dir)
	}
	return err
}

// startProfile profiles this process into file until the caller calls stop. An empty name
// does nothing.
func startProfile(file string) (stop func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}
