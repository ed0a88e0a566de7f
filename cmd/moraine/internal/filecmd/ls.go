package filecmd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/spf13/cobra"
)

func newLsCommand(env *cli.Env) *cobra.Command {
	var long bool
	cmd := &cobra.Command{
		Use:     "ls PATH...",
		GroupID: cli.GroupFiles,
		Short:   "List a directory",
		Example: "  moraine ls -l moraine:///runs",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var entries []entry
			err := env.Each(cmd.Context(), args, cli.ParseLocation, func(c *cli.Connection, l cli.Location) error {
				found, err := listDir(cmd.Context(), c, l)
				entries = append(entries, found...)
				return err
			})
			return errors.Join(printEntries(env, entries, long), err)
		},
	}
	cmd.Flags().BoolVarP(&long, "long", "l", false, "show mode, size, level and time too")
	return cmd
}

func listDir(ctx context.Context, c *cli.Connection, l cli.Location) ([]entry, error) {
	if c == nil {
		return listLocal(l.Path)
	}
	attr, err := c.Stat(ctx, l.Path)
	if err != nil {
		return nil, err
	}
	if !attr.IsDir() {
		return []entry{describeAttr(l.String(), attr)}, nil
	}
	var entries []entry
	for e, err := range c.ReadDir(ctx, l.Path) {
		if err != nil {
			return entries, err
		}
		entries = append(entries, describeAttr(e.Name, e.Attr))
	}
	return entries, nil
}

func listLocal(p string) ([]entry, error) {
	info, err := os.Stat(p)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []entry{describeLocal(p, info)}, nil
	}
	found, err := os.ReadDir(p)
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, d := range found {
		if info, err := d.Info(); err == nil { // else it was removed meanwhile
			e := describeLocal(filepath.Join(p, d.Name()), info)
			e.Path = jsonname.Name(d.Name())
			entries = append(entries, e)
		}
	}
	return entries, nil
}

func printEntries(env *cli.Env, entries []entry, long bool) error {
	if env.Global.JSON || long {
		return cli.List(env, entries, table.Row{"mode", "size", "level", "modified", "name"}, func(e entry) table.Row {
			name, level := e.Path, e.Level
			if e.Target != "" {
				name += " -> " + e.Target
			}
			if e.Degraded > 0 {
				level += " (degraded)"
			}
			return table.Row{e.Mode, cli.Size(e.Size), level, e.Modified.Format(time.DateTime), name}
		})
	}
	for _, e := range entries {
		name := e.Path
		if e.Type == "directory" {
			name += "/"
		}
		env.Note("%s", name)
	}
	return nil
}
