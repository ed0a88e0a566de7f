package filecmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// copiesAtOnce bounds the files that `cp -r` copies at the same time. All share the
// client's memory budget.
const copiesAtOnce = 4

// copyPiece is how much one read from the cluster returns.
const copyPiece = 8 << 20

type copyOptions struct {
	recursive bool
	scheme    string
	ack       string
}

func newCpCommand(env *cli.Env) *cobra.Command {
	var o copyOptions
	cmd := &cobra.Command{
		Use:     "cp FROM... TO",
		GroupID: cli.GroupFiles,
		Short:   "Copy files into, out of and within a cluster",
		Long: `Copy files. A file appears in the cluster when all its bytes are durable (level nvme),
and not before. It then replaces the file under its name. With --ack memory it appears
when its bytes are verified in the memory of the chunkservers. They write them to their
devices at once; "moraine stat" shows when the bytes are there. A file that is copied out
appears under its name when it is complete. The files that complete a checkpoint of a framework
(.metadata, latest_checkpointed_iteration.txt, model.safetensors.index.json,
trainer_state.json) are copied last.

Within a cluster, -r clones a directory whose target does not exist yet. No byte moves,
symbolic links stay links, and the clone appears when it is complete.`,
		Example: `  moraine cp model.safetensors moraine:///models/
  moraine cp -r moraine:///runs/llama/latest ./restored`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return copyAll(cmd.Context(), env, args, o) },
	}
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "r", false, "copy directories with all their "+
		"contents")
	cmd.Flags().StringVar(&o.scheme, "scheme", "", cli.SchemeUsage)
	cmd.Flags().StringVar(&o.ack, "ack", "nvme", "level that a copy waits for: nvme or memory (faster; "+
		"lost if more hosts fail at once than the scheme survives)")
	return cmd
}

// copier runs the copies of one command line.
type copier struct {
	env      *cli.Env
	sessions *cli.Sessions
	opts     copyOptions
	umask    fs.FileMode
	group    *errgroup.Group
	bar      *cli.Bar

	// last are the copies of files that complete a directory of a checkpoint. They begin when all others have
	// ended, so that nobody takes a directory for complete before.
	last []func(context.Context) error

	saying sync.Mutex // one line at a time
}

// copied is a copied file, as --json prints it.
type copied struct {
	From  jsonname.Name `json:"from"`
	To    jsonname.Name `json:"to"`
	Bytes int64         `json:"bytes"`
	// For a file in a cluster: its stripes below full protection, and how many hosts may be
	// lost (devices, on a single host).
	Degraded uint64 `json:"degraded_stripes,omitempty"`
	Protects *int   `json:"protects,omitempty"`
	// For a file copied into a cluster: its level after the copy.
	Level string `json:"level,omitempty"`
}

func copyAll(ctx context.Context, env *cli.Env, args []string, o copyOptions) (err error) {
	locations := make([]cli.Location, len(args))
	for i, arg := range args {
		if locations[i], err = cli.ParseLocation(arg); err != nil {
			return err
		}
	}
	s := env.Sessions()
	defer s.Close()
	if s.Config, err = cli.SchemeConfig(o.scheme); err != nil {
		return err
	}
	if s.Config.Level, err = cli.AckLevel(o.ack); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(copiesAtOnce)
	c := &copier{env: env, sessions: s, opts: o, umask: ReadUmask(), group: group}
	from, to := locations[:len(locations)-1], locations[len(locations)-1]
	toDir, err := c.isDir(ctx, to)
	if err != nil {
		return err
	}
	if !toDir && (len(from) > 1 || to.Dir) {
		return fmt.Errorf("%s is not a directory: make it first (`moraine mkdir`)", to)
	}
	c.bar = env.StartBar("copied", 0)
	defer func() { c.bar.Finish(err) }()
	for _, f := range from {
		target := to
		if toDir {
			target = to.Join(path.Base(filepath.ToSlash(filepath.Clean(f.Path))))
		}
		if err := c.copy(groupCtx, f, target); err != nil {
			return errors.Join(err, group.Wait())
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, copyOne := range c.last {
		if err := copyOne(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) isDir(ctx context.Context, l cli.Location) (bool, error) {
	if !l.Remote {
		info, err := os.Stat(l.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil && info.IsDir(), err
	}
	conn, err := c.sessions.Of(ctx, l)
	if err != nil {
		return false, err
	}
	attr, err := conn.Stat(ctx, l.Path)
	if errors.Is(err, moraine.NotFound) {
		return false, nil
	}
	return err == nil && attr.IsDir(), err
}

// copy copies a file, or starts the copies of a tree.
func (c *copier) copy(ctx context.Context, from, to cli.Location) error {
	dir, err := c.isDir(ctx, from)
	if err != nil {
		return err
	}
	if !dir {
		if adopted.CompletesDirectory(path.Base(filepath.ToSlash(from.Path))) {
			c.last = append(c.last, func(ctx context.Context) error { return c.copyFile(ctx, from, to) })
			return nil
		}
		c.group.Go(func() error { return c.copyFile(ctx, from, to) })
		return nil
	}
	if !c.opts.recursive {
		return cli.UsageError("cp: %s is a directory: give -r to copy it with all its contents", from)
	}
	if from.Remote == to.Remote && from.Hosts == to.Hosts && strings.HasPrefix(to.Path+"/", from.Path+"/") {
		return cli.UsageError("cp: %s lies in %s: name a target outside it", to, from)
	}
	if from.Remote && to.Remote && from.Hosts == to.Hosts && c.opts.scheme == "" {
		if done, err := c.cloneDir(ctx, from, to); done || err != nil {
			return err
		}
	}
	return c.copyDir(ctx, from, to)
}

// cloneDir clones a directory within a cluster. It returns false where the target exists,
// or where the cluster cannot clone the directory there.
func (c *copier) cloneDir(ctx context.Context, from, to cli.Location) (bool, error) {
	conn, err := c.sessions.Of(ctx, to)
	if err != nil {
		return false, err
	}
	j, err := conn.Jobs().CloneTree(ctx, from.Path, to.Path)
	if errors.Is(err, moraine.Exists) || errors.Is(err, moraine.CrossTenant) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	id := j.ID
	if j, err = conn.Jobs().Wait(ctx, id, nil); err != nil {
		return false, fmt.Errorf("%w; the clone continues (moraine job wait %s, moraine job cancel %s)", err, id, id)
	}
	if j.State != client.JobDone {
		return false, fmt.Errorf("cannot clone %s to %s: %s", from, to, j.Error)
	}
	done := copied{From: jsonname.Name(from.String()), To: jsonname.Name(to.String())}
	if attr, err := conn.Stat(ctx, to.Path); err == nil {
		if u, err := conn.Quotas().Usage(ctx, attr.Inode()); err == nil {
			done.Bytes = int64(u.Usage.Bytes)
		}
	}
	return true, c.say(done)
}

func (c *copier) copyDir(ctx context.Context, from, to cli.Location) error {
	if to.Remote {
		conn, err := c.sessions.Of(ctx, to)
		if err != nil {
			return err
		}
		if _, err := conn.MkdirAll(ctx, to.Path, 0o755); err != nil {
			return err
		}
	} else if err := os.MkdirAll(to.Path, 0o755); err != nil {
		return err
	}
	names, err := c.names(ctx, from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.copy(ctx, from.Join(name), to.Join(name)); err != nil {
			return err
		}
	}
	return nil
}

// skip reports an entry that cannot be copied.
func (c *copier) skip(l cli.Location) {
	c.saying.Lock()
	defer c.saying.Unlock()
	fmt.Fprintf(c.env.Err, "moraine: skipped %s: a fifo, socket or device node has no content to copy\n", l)
}

// names returns the names in a directory, without those of special files.
func (c *copier) names(ctx context.Context, l cli.Location) ([]string, error) {
	var names []string
	if !l.Remote {
		entries, err := os.ReadDir(l.Path)
		for _, e := range entries {
			if special := fs.ModeNamedPipe | fs.ModeSocket | fs.ModeDevice; e.Type()&special != 0 {
				c.skip(l.Join(e.Name()))
				continue
			}
			names = append(names, e.Name())
		}
		return names, err
	}
	conn, err := c.sessions.Of(ctx, l)
	if err != nil {
		return nil, err
	}
	for e, err := range conn.ReadDir(ctx, l.Path) {
		if err != nil {
			return nil, err
		}
		switch {
		case e.Attr.IsSpecial():
			c.skip(l.Join(e.Name))
			continue
		case e.Attr.IsDir() && moraine.IsHidden(e.Name):
			continue
		}
		names = append(names, e.Name)
	}
	return names, nil
}
