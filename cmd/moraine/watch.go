package main

import (
	"context"
	"path"
	"time"

	"github.com/spf13/cobra"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// watchInfo is what `watch --json` prints of a change, one a line.
type watchInfo struct {
	Event   client.EventKind `json:"event"`
	Path    string           `json:"path"`
	OldPath string           `json:"old_path,omitempty"`
	Inode   string           `json:"inode"`
	Type    string           `json:"type,omitempty"`
	Time    time.Time        `json:"time"`
}

var typeNames = map[wire.FileType]string{
	wire.FileType_FILE_TYPE_REGULAR: "file", wire.FileType_FILE_TYPE_DIRECTORY: "directory",
	wire.FileType_FILE_TYPE_SYMLINK: "symlink",
}

func (a *app) watchCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "watch PATH",
		GroupID: groupFiles,
		Short:   "Print changes below a directory, as they happen",
		Long: `Print the changes below a directory as they happen, until it is interrupted: created, removed,
renamed (both names below the directory) and changed (content or attributes).

The first line is "resync". After it nothing is missed: a program that keeps a copy of the
directory reads the directory when it gets that line, and then follows the changes. The line
comes again, rarely, where changes may have been missed (the service was away for long).
A failover alone does not cause it.

A removed directory is one line, without what was below it, and so is a directory that is
moved in. Paths are as of the moment at which the line is printed. Several changes of one
file at about the same time may be one line.`,
		Example: `  moraine watch moraine:///runs/llama
  moraine watch moraine:///inbox --json | jq -r 'select(.event == "created").path'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			err := a.each(ctx, args, parseRemote, func(c *connection, l location) error {
				return a.watch(ctx, c, l, limit)
			})
			if isInterrupt(ctx, err) {
				return nil // that is how it ends
			}
			return err
		},
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 0, "end after this many events, resyncs not counted "+
		"(default: none)")
	return cmd
}

func (a *app) watch(ctx context.Context, c *connection, l location, limit int) error {
	told := 0
	for e, err := range c.Watch(ctx, l.path) {
		if err != nil {
			return err
		}
		info := watchInfo{Event: e.Kind, Path: path.Join(l.path, e.Path), Inode: e.Inode.String(), Type: typeNames[e.Type], Time: time.Now()}
		if e.OldPath != "" {
			info.OldPath = path.Join(l.path, e.OldPath)
		}
		if err := a.printEvent(info); err != nil {
			return err
		}
		if e.Kind == client.EventResync {
			continue
		}
		if told++; told == limit {
			return nil
		}
	}
	return nil
}

func (a *app) printEvent(e watchInfo) error {
	if a.global.json {
		return printJSON(a.out, e)
	}
	if e.OldPath != "" {
		a.note("%-8s  %s -> %s", e.Event, e.OldPath, e.Path)
	} else {
		a.note("%-8s  %s", e.Event, e.Path)
	}
	return nil
}
