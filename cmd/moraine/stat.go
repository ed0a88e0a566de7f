package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) statCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "stat PATH...",
		GroupID: groupFiles,
		Short:   "Show all that is known of a file: size, level, generation, protection",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, parseLocation, func(c *connection, l location) error {
				var e entry
				if c == nil {
					info, err := os.Lstat(l.path)
					if err != nil {
						return err
					}
					e = describeLocal(l.path, info)
				} else {
					attr, err := c.Lstat(cmd.Context(), l.path)
					if err != nil {
						return err
					}
					e = describeAttr(l.String(), attr)
				}
				if a.global.json {
					return printJSON(a.out, e)
				}
				a.printStat(e)
				return nil
			})
		},
	}
}

func (a *app) printStat(e entry) {
	a.note("%s", e.Path)
	a.note("  type        %s", e.Type)
	a.note("  size        %s (%d bytes)", size(e.Size), e.Size)
	a.note("  mode        %s  uid %d  gid %d", e.Mode, e.UID, e.GID)
	a.note("  modified    %s", e.Modified.Format(time.RFC3339Nano))
	if e.Target != "" {
		a.note("  target      %s", e.Target)
	}
	if e.Inode == "" {
		return
	}
	a.note("  inode       %s", e.Inode)
	if e.Type != "file" {
		return
	}
	a.note("  generation  %d", e.Generation)
	a.note("  level       %s", e.Level)
	if e.Level == "lost" {
		a.note("              bytes that were only in memory are lost: `moraine cluster lost` says " +
			"which")
	}
	a.note("  kept        %s", e.kept())
	if e.Degraded > 0 {
		a.note("  protection  %d stripes were below full protection at the last commit (`moraine "+
			"cluster status` shows the present state)", e.Degraded)
	}
}

// kept says in words where the content of a file is.
func (e *entry) kept() string {
	switch {
	case e.Size == 0:
		return "nowhere: it is empty"
	case e.Evicted && e.Clean:
		return "in the object tier (evicted from the chunkservers)"
	case e.Evicted:
		return "on the chunkservers, and some of it only in the object tier"
	case e.Clean:
		return "on the chunkservers and in the object tier"
	}
	return "on the chunkservers"
}
