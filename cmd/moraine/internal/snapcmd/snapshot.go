// Package snapcmd has the commands that make, list and remove snapshots of directories.
package snapcmd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
)

// NewSnapshotCommand returns `moraine snapshot`.
func NewSnapshotCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "snapshot",
		GroupID: cli.GroupFiles,
		Short:   "Make, list and remove read-only snapshots of a directory",
		Long: `Make, list and remove read-only snapshots of a directory.

A snapshot is a clone of a directory and all below it that nobody can change. It shares the bytes
of the files, so it is made in seconds and needs no space for them until they change. It is seen as
DIR/` + moraine.SnapshotsDir + `/NAME, which listings of a mount and of S3 omit.

Each file is as it was at one moment of the command. To keep several files of one moment, let no
program write to them meanwhile.`,
	}, newCreateCommand(env), newLsCommand(env), newRmCommand(env))
}

// made is what `snapshot create` prints.
type made struct {
	Snapshot jsonname.Name `json:"snapshot"`
	Entries  uint64        `json:"entries"`
}

func newCreateCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "create DIR [NAME]",
		Short: "Make a snapshot; without a name it gets the present time (UTC)",
		Example: `  moraine snapshot create moraine:///datasets/web before-dedup
  moraine cp -r moraine:///datasets/web/` + moraine.SnapshotsDir + `/before-dedup moraine:///datasets/web2   # a copy that can be changed`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := time.Now().UTC().Format("2006-01-02T15.04.05")
			if len(args) == 2 {
				name = args[1]
			}
			return env.Each(cmd.Context(), args[:1], cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				m, err := create(cmd.Context(), c, l, name)
				if err != nil {
					return err
				}
				return cli.List(env, []made{m}, table.Row{"entries", "snapshot"}, func(m made) table.Row { return table.Row{m.Entries, m.Snapshot} })
			})
		},
	}
}

// create makes a snapshot and returns when it is whole.
func create(ctx context.Context, c *cli.Connection, l cli.Location, name string) (made, error) {
	to := l.Join(moraine.SnapshotsDir).Join(name)
	j, err := c.Jobs().Snapshot(ctx, l.Path, name)
	if errors.Is(err, moraine.Exists) {
		return made{}, fmt.Errorf("%s exists: choose another name, or remove it first (moraine snapshot rm)", to)
	}
	if err != nil {
		return made{}, wrongName(err)
	}
	id := j.ID
	if j, err = c.Jobs().Wait(ctx, id, nil); err != nil {
		return made{}, fmt.Errorf("%w; the snapshot continues (moraine job wait %s, moraine job cancel %s)", err, id, id)
	}
	if j.State != client.JobDone {
		return made{}, fmt.Errorf("cannot make %s: %s", to, j.Error)
	}
	return made{Snapshot: jsonname.Name(to.String()), Entries: j.Done}, nil
}

// snapshotInfo is what `snapshot ls` prints of a snapshot.
type snapshotInfo struct {
	Name  jsonname.Name `json:"name"`
	Made  time.Time     `json:"made"`
	Bytes uint64        `json:"bytes"`
	Path  jsonname.Name `json:"path"`
}

func newLsCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "ls DIR...",
		Short:   "List the snapshots of directories",
		Example: `  moraine snapshot ls moraine:///datasets/web`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var all []snapshotInfo
			err := env.Each(cmd.Context(), args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				of, err := list(cmd.Context(), c, l)
				all = append(all, of...)
				return err
			})
			if err != nil {
				return err
			}
			return cli.List(env, all, table.Row{"name", "made", "size", "path"}, func(s snapshotInfo) table.Row {
				return table.Row{s.Name, s.Made.Format(time.DateTime), cli.Size(s.Bytes), s.Path}
			})
		},
	}
}

// list returns the snapshots of a directory; none if it has had none.
func list(ctx context.Context, c *cli.Connection, l cli.Location) ([]snapshotInfo, error) {
	if _, err := c.Stat(ctx, l.Path); err != nil {
		return nil, err
	}
	var all []snapshotInfo
	for e, err := range c.ReadDir(ctx, path.Join(l.Path, moraine.SnapshotsDir)) {
		if errors.Is(err, moraine.NotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if !e.Attr.IsDir() {
			continue
		}
		s := snapshotInfo{Name: jsonname.Name(e.Name), Made: e.Attr.ChangeTime().UTC(), Path: jsonname.Name(l.Join(moraine.SnapshotsDir).Join(e.Name).String())}
		if u, err := c.Quotas().Usage(ctx, e.Attr.Inode()); err == nil {
			s.Bytes = u.Usage.Bytes
		}
		all = append(all, s)
	}
	return all, nil
}

func newRmCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "rm DIR NAME...",
		Short:   "Remove snapshots",
		Example: `  moraine snapshot rm moraine:///datasets/web before-dedup`,
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.Each(cmd.Context(), args[:1], cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				for _, name := range args[1:] {
					if err := c.Jobs().RemoveSnapshot(cmd.Context(), l.Path, name); err != nil {
						return wrongName(err)
					}
				}
				return nil
			})
		},
	}
}

// wrongName makes an error in the command line of the refusal of a name.
func wrongName(err error) error {
	if errors.Is(err, moraine.InvalidArgument) {
		return cli.UsageError("%v", err)
	}
	return err
}
