package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

func (a *app) metadataBackupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a backup of the metadata to a file",
		Long: `Write a consistent snapshot of the metadata, as it is now, to FILE, which must not be
there yet. The cluster goes on meanwhile. The file is whole and synced when the command
succeeds, and is not there when it fails. It holds names and layouts, no file's bytes:
those are on the devices and in the bucket. It holds the keys that sign session tokens,
too: keep it as you keep --data.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			return a.backup(cmd.Context(), c, args[0])
		},
	}
}

// backupResult is what `metadata backup` and `restore` print.
type backupResult struct {
	File        string `json:"file"`
	Cluster     string `json:"cluster"`
	Incarnation uint64 `json:"incarnation"`
	Applied     uint64 `json:"applied"`
	Bytes       uint64 `json:"bytes"`
	Taken       string `json:"taken"`
}

func (a *app) backup(ctx context.Context, c *connection, name string) (err error) {
	if _, err := os.Lstat(name); err == nil {
		return usageError("%s is there already: a backup never takes the place of another", name)
	}
	part := name + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(part))
		}
	}()
	info, err := writeBackup(ctx, c, f, a)
	if err != nil {
		return fmt.Errorf("write %s: %w", part, err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = raftstore.ReadBackup(f, size) // what was written is whole
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(part, name)
	}
	if err != nil {
		return err
	}
	if err := (vfs.OS{}).SyncDir(filepath.Dir(name)); err != nil {
		return err
	}
	return a.printBackup("written to", name, info, f.Close())
}

func (a *app) printBackup(what, name string, info raftstore.BackupInfo, err error) error {
	if err != nil {
		return err
	}
	r := backupResult{File: name, Cluster: info.Cluster.String(), Incarnation: info.Incarnation, Applied: info.Applied,
		Bytes: uint64(info.Bytes), Taken: info.Taken.UTC().Format(time.RFC3339)}
	if a.global.json {
		return printJSON(a.out, r)
	}
	a.note("the metadata of cluster %s as of entry %d (history %d, %s, taken %s) is %s %s", r.Cluster, r.Applied, r.Incarnation, size(r.Bytes), r.Taken, what, name)
	return nil
}

// writeBackup reads a backup from the leader, and writes it to f.
func writeBackup(ctx context.Context, c *connection, f io.Writer, a *app) (info raftstore.BackupInfo, err error) {
	var w *raftstore.BackupWriter
	var bar *bar
	defer func() { bar.finish(err) }()
	for id, offset := uint64(0), uint64(0); ; {
		resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReadBackup{ReadBackup: &wire.ReadBackup{Backup: id, Offset: offset}}})
		if err != nil {
			return info, err
		}
		r := resp.GetReadBackup()
		if w == nil {
			info = raftstore.BackupInfo{Incarnation: r.Incarnation, Applied: r.Applied, Term: r.Term, Taken: time.Now(), Bytes: int64(r.Size)}
			if len(r.Cluster) != len(info.Cluster) {
				return info, &moraine.Error{Op: "backup", Kind: moraine.Internal, Err: errors.New("the cluster has no identity")}
			}
			info.Cluster = moraine.UUID(r.Cluster)
			if w, err = raftstore.NewBackupWriter(f, info); err != nil {
				return info, err
			}
			bar = a.startBar("backup", info.Bytes)
		}
		if len(r.Data) == 0 {
			return info, w.Close()
		}
		if _, err := w.Write(r.Data); err != nil {
			return info, err
		}
		bar.add(int64(len(r.Data)))
		id, offset = r.Backup, offset+uint64(len(r.Data))
	}
}

// offlineOptions are the flags of commands that work on a server's directory.
type offlineOptions struct {
	id, data, address string
	yes               bool
}

func (o *offlineOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.id, "id", "", "id of the server that goes on, as in its certificate")
	f.StringVar(&o.data, "data", "", "its directory; no server may run on it")
	f.StringVar(&o.address, "address", "", "where others reach it, HOST:PORT")
}

func (o *offlineOptions) config() (raftstore.Config, error) {
	if o.id == "" || o.data == "" || o.address == "" {
		return raftstore.Config{}, usageError("--id, --data and --address are needed")
	}
	addr := withPort(o.address, defaultMetadataPort)
	return raftstore.Config{Dir: o.data, Node: o.id, Cluster: moraine.UUID{1},
		Peers: []raftstore.Peer{{ID: o.id, Address: addr, Client: []string{addr}}}}, nil
}

func (a *app) metadataRestoreCommand() *cobra.Command {
	var o offlineOptions
	var after uint8
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Begin the cluster's metadata anew from a backup",
		Long: `Make --data, an empty directory on this machine, the directory of a metadata server
that has what a backup holds, alone. Start it with the --peers of itself only, then add
others ("metadata add").

What came after the backup is lost: files that were made since are gone, and those that
were removed since are back, maybe without their bytes. The history gets a new number, so
that sessions, grants and tokens of before are refused, and chunks that nothing explains
now are kept and listed, not deleted. No metadata server of before may run again on its
old --data.

Say by --after-history the highest number that a history of this cluster ever had
("incarnation" of "metadata status"), also one that you give up now, and one that came of
this same backup: the new one gets the number after it. The file cannot tell what came
after it. Where a number is given out twice, stripes and sessions of two histories have
the same names, and the bytes of one may be taken for those of the other, or deleted. If
you do not know it, give one that is surely not below it; there are 254.`,
		Example: "  moraine metadata restore metadata.backup --id m1 --data /var/lib/moraine --address host1:7400 --after-history 1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := o.config()
			if err != nil {
				return err
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			st, err := f.Stat()
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("after-history") {
				return historyNeeded(args[0], f, st.Size())
			}
			first, err := metadata.NextHistory(after)
			if err != nil {
				return err
			}
			info, err := raftstore.Restore(cfg, raftstore.Deps{}, f, st.Size(), first)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if err := a.printBackup("restored from", args[0], info, nil); err != nil {
				return err
			}
			a.note("the new history has the number %d: for every later restore, also of this same backup, give --after-history %[1]d or more", max(info.Incarnation, uint64(after))+1)
			a.note("start it: moraine metadata --id %s --data %s --peers %s=%s ...; then add others with `moraine metadata add`", o.id, o.data, o.id, cfg.Peers[0].Address)
			return nil
		},
	}
	o.flags(cmd)
	cmd.Flags().Uint8Var(&after, "after-history", 0, "the highest number that a history of this cluster ever had, also one made from this backup (needed)")
	return cmd
}

// historyNeeded says what to give as --after-history, once the backup was found
// to be whole.
func historyNeeded(name string, f io.ReaderAt, size int64) error {
	info, err := raftstore.ReadBackup(f, size)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return usageError("--after-history is needed: the highest number that a history of this cluster ever had. The backup is of history %d: "+
		"give %[1]d only if the metadata was never restored or forced since, not from this backup either", info.Incarnation)
}

// forceReport is what `metadata force-quorum` prints.
type forceReport struct {
	Node      string   `json:"node"`
	Cluster   string   `json:"cluster"`
	Members   []string `json:"members"`
	Voters    int      `json:"voters"`
	LastIndex uint64   `json:"last_index"`
	LastTerm  uint64   `json:"last_term"`
	Appended  string   `json:"last_appended"`
	// Warning is what is lost where it is done, or was.
	Warning string `json:"warning"`
	Forced  bool   `json:"forced"`
}

func (a *app) metadataForceCommand() *cobra.Command {
	var o offlineOptions
	cmd := &cobra.Command{
		Use:   "force-quorum",
		Short: "Let a metadata server go on alone after a majority is lost for good",
		Long: `After the disks of a majority of the metadata servers are lost for good: let the one
whose --data is left go on, alone. It works on the directory; no server may run on it.
Of several that are left take the one whose last entry is the newest: without
--i-accept-the-loss the command changes nothing, and says how far the directory goes
and what is lost. With --json that is one report, with a "warning": look at one without
the flag first.

What the lost servers had acknowledged, and this one had not got, is lost. The history
gets a new number, as with "metadata restore". None of the other servers may ever run
again on its old --data: two histories would go on side by side.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.forceQuorum(o) },
	}
	o.flags(cmd)
	cmd.Flags().BoolVar(&o.yes, "i-accept-the-loss", false, "do it; what only the lost servers knew is given up")
	return cmd
}

func (a *app) forceQuorum(o offlineOptions) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	sv, err := raftstore.ForceAlone(cfg, raftstore.Deps{}, nil, false) // it only looks
	if err != nil {
		return err
	}
	r := forceReport{Node: sv.Node, Cluster: sv.Cluster.String(), Members: sv.Members, Voters: sv.Voters, LastIndex: sv.LastIndex,
		LastTerm: sv.LastTerm, Warning: "what the others acknowledged after that entry is lost; the others must never run again on their --data"}
	old := "at a time that its log does not tell"
	if !sv.Appended.IsZero() {
		r.Appended = sv.Appended.UTC().Format(time.RFC3339)
		old = fmt.Sprintf("at %s, %v ago", r.Appended, time.Since(sv.Appended).Round(time.Second))
	}
	a.note("%s of cluster %s; members: %s", sv.Node, sv.Cluster, strings.Join(sv.Members, ", "))
	a.note("its last entry is %d of term %d, appended %s", sv.LastIndex, sv.LastTerm, old)
	a.note("WARNING: %s", r.Warning)
	if o.yes {
		if a.global.json { // the report comes when it is done
			fmt.Fprintf(a.err, "WARNING: %s\n", r.Warning)
		}
		if err := force(cfg); err != nil {
			return err
		}
		r.Forced = true
	}
	if a.global.json {
		if err := printJSON(a.out, r); err != nil {
			return err
		}
	}
	if !o.yes {
		return &exitError{code: exitWrongUse, err: fmt.Errorf("nothing was changed: give --i-accept-the-loss to let %s go on alone with what it has", sv.Node)}
	}
	a.note("%s goes on alone: start it, and add others with `moraine metadata add`", sv.Node)
	return nil
}

func force(cfg raftstore.Config) error {
	entry, err := metadata.NextHistory(0)
	if err != nil {
		return err
	}
	_, err = raftstore.ForceAlone(cfg, raftstore.Deps{}, entry, true)
	return err
}
