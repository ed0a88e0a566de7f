package filecmd

import (
	"context"
	"io/fs"
	"path"
	"path/filepath"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/spf13/cobra"
)

// treeUsage is what `du` prints of one argument.
type treeUsage struct {
	Path        jsonname.Name `json:"path"`
	Bytes       uint64        `json:"bytes"`
	Files       uint64        `json:"files"`
	Directories uint64        `json:"directories"`
}

func (u *treeUsage) count(dir bool, size uint64) {
	if dir {
		u.Directories++
		return
	}
	u.Files++
	u.Bytes += size
}

func newDuCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "du PATH...",
		GroupID: cli.GroupFiles,
		Short:   "Add up the files below a directory",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var usages []treeUsage
			err := env.Each(cmd.Context(), args, cli.ParseLocation, func(c *cli.Connection, l cli.Location) error {
				u := treeUsage{Path: jsonname.Name(l.String())}
				var err error
				if c == nil {
					err = u.addLocal(l.Path)
				} else {
					err = u.add(cmd.Context(), c, l.Path)
				}
				usages = append(usages, u)
				return err
			})
			if err != nil {
				return err
			}
			return cli.List(env, usages, table.Row{"size", "files", "directories", "path"}, func(u treeUsage) table.Row {
				return table.Row{cli.Size(u.Bytes), u.Files, u.Directories, u.Path}
			})
		},
	}
}

func (u *treeUsage) add(ctx context.Context, c *cli.Connection, p string) error {
	attr, err := c.Lstat(ctx, p)
	if err != nil {
		return err
	}
	u.count(attr.IsDir(), uint64(attr.Size()))
	if !attr.IsDir() {
		return nil
	}
	for e, err := range c.ReadDir(ctx, p) {
		if err != nil {
			return err
		}
		if e.Attr.IsDir() {
			if err := u.add(ctx, c, path.Join(p, e.Name)); err != nil {
				return err
			}
			continue
		}
		u.count(false, uint64(e.Attr.Size()))
	}
	return nil
}

func (u *treeUsage) addLocal(p string) error {
	return filepath.WalkDir(p, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			u.count(d.IsDir(), uint64(info.Size()))
		}
		return err
	})
}
