package filecmd

import (
	"os"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

func newStatCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "stat PATH...",
		GroupID: cli.GroupFiles,
		Short:   "Show all that is known of a file: size, level, generation, protection",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.Each(cmd.Context(), args, cli.ParseLocation, func(c *cli.Connection, l cli.Location) error {
				var e entry
				if c == nil {
					info, err := os.Lstat(l.Path)
					if err != nil {
						return err
					}
					e = describeLocal(l.Path, info)
				} else {
					attr, err := c.Lstat(cmd.Context(), l.Path)
					if err != nil {
						return err
					}
					e = describeAttr(l.String(), attr)
				}
				if env.Global.JSON {
					return cli.PrintJSON(env.Out, e)
				}
				printStat(env, e)
				return nil
			})
		},
	}
}

func printStat(env *cli.Env, e entry) {
	env.Note("%s", e.Path)
	env.Note("  type        %s", e.Type)
	env.Note("  size        %s (%d bytes)", cli.Size(e.Size), e.Size)
	env.Note("  mode        %s  uid %d  gid %d", e.Mode, e.UID, e.GID)
	env.Note("  modified    %s", e.Modified.Format(time.RFC3339Nano))
	if e.Target != "" {
		env.Note("  target      %s", e.Target)
	}
	if e.Inode == "" {
		return
	}
	env.Note("  inode       %s", e.Inode)
	if e.Type != "file" {
		return
	}
	env.Note("  generation  %d", e.Generation)
	env.Note("  level       %s", e.Level)
	if e.Level == "lost" {
		env.Note("              bytes that were only in memory are lost: `moraine cluster lost` says " +
			"which")
	}
	env.Note("  kept        %s", e.kept())
	if e.Degraded > 0 {
		env.Note("  protection  %d stripes were below full protection at the last commit (`moraine "+
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
	case e.Inline > 0 && e.Inline == e.Stored && e.Clean:
		return "in the metadata and in the object tier"
	case e.Inline > 0 && e.Inline == e.Stored:
		return "in the metadata"
	case e.Inline > 0:
		return "on the chunkservers and in the metadata"
	case e.Clean:
		return "on the chunkservers and in the object tier"
	}
	return "on the chunkservers"
}
