package fsckcmd

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/metadatacmd"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/check"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// checkState checks the metadata itself: reference counts, the index of devices, counters
// and usage, each against its own count. It does so on a consistent copy here, a backup in
// a directory for temporary files, so that the leader only reads files. It returns in words
// what is inconsistent.
func checkState(ctx context.Context, env *cli.Env, c *cli.Connection) (problems []string, err error) {
	dir, err := os.MkdirTemp("", "moraine-fsck-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := os.OpenFile(filepath.Join(dir, "backup"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := metadatacmd.WriteBackup(ctx, env, c, f); err != nil {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	err = raftstore.InspectBackup(vfs.OS{}, filepath.Join(dir, "state"), f, size, func(r kvtx.Reader, _ uint64) error {
		problems, err = check.Check(state.New(0).View(r))
		return err
	})
	return problems, err
}
