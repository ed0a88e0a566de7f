package metadatacmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newMetadataBackupCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a backup of the metadata to a file",
		Long: `Write a consistent snapshot of the current metadata to FILE, which must not exist yet. The
cluster continues meanwhile. The file is complete and synced when the command succeeds,
and does not exist when it fails.

The backup contains names and layouts, but no file's bytes: those are on the devices and in
the bucket. It also contains the keys that sign session tokens: protect it like --data.`,
		Args: cobra.ExactArgs(1),
		RunE: env.OnCluster(func(ctx context.Context, c *cli.Connection, args []string) error {
			return backup(ctx, env, c, args[0])
		}),
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

func backup(ctx context.Context, env *cli.Env, c *cli.Connection, name string) (err error) {
	if _, err := os.Lstat(name); err == nil {
		return backupIsThere(name)
	}
	// A file of its own: another command may write a backup to the same name.
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.part")
	if err != nil {
		return err
	}
	part := f.Name()
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(part))
		}
	}()
	info, err := WriteBackup(ctx, env, c, f)
	if err != nil {
		return fmt.Errorf("write %s: %w", part, err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = raftstore.ReadBackup(f, size) // the file is complete
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = giveName(part, name)
	}
	if err != nil {
		return err
	}
	if err := (vfs.OS{}).SyncDir(filepath.Dir(name)); err != nil {
		return err
	}
	return printBackup(env, "written to", name, info, f.Close())
}

func backupIsThere(name string) error {
	return cli.UsageError("%s is there already: a backup never takes the place of another", name)
}

// giveName renames a file. It fails where another file has the name.
func giveName(from, name string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, name, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return backupIsThere(name)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // not every file system supports the flag
		if _, err := os.Lstat(name); err == nil {
			return backupIsThere(name)
		}
		return os.Rename(from, name)
	}
	return err
}

func printBackup(env *cli.Env, what, name string, info raftstore.BackupInfo, err error) error {
	if err != nil {
		return err
	}
	r := backupResult{File: name, Cluster: info.Cluster.String(), Incarnation: info.Incarnation, Applied: info.Applied,
		Bytes: uint64(info.Bytes), Taken: info.Taken.UTC().Format(time.RFC3339)}
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, r)
	}
	env.Note("the metadata of cluster %s as of entry %d (incarnation %d, %s, taken %s) is %s %s", r.Cluster, r.Applied, r.Incarnation, cli.Size(r.Bytes), r.Taken, what, name)
	return nil
}

// WriteBackup reads a backup from the leader, and writes it to f.
func WriteBackup(ctx context.Context, env *cli.Env, c *cli.Connection, f io.Writer) (info raftstore.BackupInfo, err error) {
	var w *raftstore.BackupWriter
	var bar *cli.Bar
	defer func() { bar.Finish(err) }()
	id, offset := uint64(0), uint64(0)
	defer func() {
		if err != nil && id != 0 {
			endBackup(ctx, c, id)
		}
	}()
	for {
		resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReadBackup{ReadBackup: &wire.ReadBackup{Backup: id, Offset: offset}}})
		if err != nil {
			return info, err
		}
		r := resp.GetReadBackup()
		id = r.Backup
		if w == nil {
			info = raftstore.BackupInfo{Incarnation: r.Incarnation, Applied: r.Applied, Term: r.Term, Taken: time.Now(), Horizon: time.Duration(r.HorizonMillis) * time.Millisecond, Bytes: int64(r.Size)}
			if len(r.Cluster) != len(info.Cluster) {
				return info, &moraine.Error{Op: "backup", Kind: moraine.Internal, Err: errors.New("the cluster has no identity")}
			}
			info.Cluster = moraine.UUID(r.Cluster)
			if w, err = raftstore.NewBackupWriter(f, info); err != nil {
				return info, err
			}
			bar = env.StartBar("backup", info.Bytes)
		}
		if len(r.Data) == 0 {
			return info, w.Close()
		}
		if _, err := w.Write(r.Data); err != nil {
			return info, err
		}
		bar.Add(int64(len(r.Data)))
		offset += uint64(len(r.Data))
	}
}

// endBackup reports to the leader that the command has stopped reading a backup, so that the
// leader frees its place at once. Without this report the leader does so within a minute.
func endBackup(ctx context.Context, c *cli.Connection, id uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReadBackup{ReadBackup: &wire.ReadBackup{Backup: id, End: true}}})
}
