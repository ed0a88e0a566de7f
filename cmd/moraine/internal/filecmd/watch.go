package filecmd

import (
	"context"
	"path"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/spf13/cobra"
)

// watchInfo is what `watch --json` prints of a change, one a line.
type watchInfo struct {
	Event   client.EventKind `json:"event"`
	Path    jsonname.Name    `json:"path"`
	OldPath jsonname.Name    `json:"old_path,omitempty"`
	Inode   string           `json:"inode"`
	Type    string           `json:"type,omitempty"`
	Time    time.Time        `json:"time"`
}

var typeNames = map[client.FileType]string{
	client.TypeRegular: "file", client.TypeDirectory: "directory", client.TypeSymlink: "symlink", client.TypeFifo: "fifo",
	client.TypeSocket: "socket", client.TypeCharDevice: "char-device", client.TypeBlockDevice: "block-device",
}

func newWatchCommand(env *cli.Env) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "watch PATH",
		GroupID: cli.GroupFiles,
		Short:   "Print changes below a directory, as they happen",
		Long: `Print the changes below a directory as they happen, until the command is interrupted. The
events are created, removed, renamed (both names below the directory) and changed (content
or attributes).

The first line is "resync". After it the command misses no change. A program that keeps a
copy of the directory reads the directory when it gets that line, and then follows the
changes. The line comes again, rarely, when the command may have missed changes (the service
was away for long). A failover alone does not cause it.

A removed directory is one line, without the files below it, and so is a directory that is
moved in. Paths are as of the moment at which the line is printed. Several changes of one
file at about the same time may be one line.`,
		Example: `  moraine watch moraine:///runs/llama
  moraine watch moraine:///inbox --json | jq -r 'select(.event == "created").path'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			err := env.Each(ctx, args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				return watchPath(ctx, env, c, l, limit)
			})
			if cli.IsInterrupt(ctx, err) {
				return nil // Ctrl-C is how a watch ends
			}
			return err
		},
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 0, "end after this many events, resyncs not counted "+
		"(default: none)")
	return cmd
}

func watchPath(ctx context.Context, env *cli.Env, c *cli.Connection, l cli.Location, limit int) error {
	printed := 0
	for e, err := range c.Watch(ctx, l.Path) {
		if err != nil {
			return err
		}
		info := watchInfo{Event: e.Kind, Path: jsonname.Name(path.Join(l.Path, e.Path)), Inode: e.Inode.String(), Type: typeNames[e.Type], Time: time.Now()}
		if e.OldPath != "" {
			info.OldPath = jsonname.Name(path.Join(l.Path, e.OldPath))
		}
		if err := printEvent(env, info); err != nil {
			return err
		}
		if e.Kind == client.EventResync {
			continue
		}
		if printed++; printed == limit {
			return nil
		}
	}
	return nil
}

func printEvent(env *cli.Env, e watchInfo) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, e)
	}
	if e.OldPath != "" {
		env.Note("%-8s  %s -> %s", e.Event, e.OldPath, e.Path)
	} else {
		env.Note("%-8s  %s", e.Event, e.Path)
	}
	return nil
}
