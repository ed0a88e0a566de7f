package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// ClusterTarget works through the Go client. Close is called by Target.Close.
func ClusterTarget(c *client.Client, close func() error) Target {
	return &clusterTarget{c: c, close: close, dirs: map[string]moraine.InodeID{}}
}

type clusterTarget struct {
	c     *client.Client
	close func() error
	// dirs are the directories of the small files, looked up once, as a mount
	// would. One goroutine uses a target.
	dirs map[string]moraine.InodeID
	// appended is the file that OpCommit appends to, and granted the stripes that
	// it may still commit.
	appended moraine.InodeID
	granted  *wire.GrantReply
}

// Write passes the client memory that does not change: this is how checkpoints are
// written.
func (t *clusterTarget) Write(ctx context.Context, name string, total int64, source []byte) error {
	return t.writeAt(ctx, name, total, source, moraine.NVMe)
}

func (t *clusterTarget) writeAt(ctx context.Context, name string, total int64, source []byte, level moraine.Level) error {
	f, err := t.c.Create(ctx, name, client.CreateOptions{Replace: true, Level: level})
	if err != nil {
		return err
	}
	for total > 0 {
		p := source[:min(total, int64(len(source)))]
		if _, err := f.WriteStable(p); err != nil {
			f.Abort()
			return err
		}
		total -= int64(len(p))
	}
	_, err = f.Commit(ctx)
	return err
}

// Read implements Target.
func (t *clusterTarget) Read(ctx context.Context, name string, buf []byte) (int64, error) {
	r, err := t.c.OpenFile(ctx, name)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	buf = buf[:min(len(buf), readPiece)]
	for off := int64(0); off < r.Size(); {
		n := min(int64(len(buf)), r.Size()-off)
		if _, err := r.ReadAt(ctx, buf[:n], off); err != nil {
			return off, err
		}
		off += n
	}
	return r.Size(), nil
}

// readPiece is how much a sequential reader requests at a time, like the restore of
// a large tensor.
const readPiece = 64 << 20

// Mkdir implements Target.
func (t *clusterTarget) Mkdir(ctx context.Context, name string) error {
	_, err := t.c.MkdirAll(ctx, name, 0o755)
	return err
}

func (t *clusterTarget) dir(ctx context.Context, dir string) (moraine.InodeID, error) {
	if id, ok := t.dirs[dir]; ok {
		return id, nil
	}
	attr, err := t.c.Stat(ctx, dir)
	if err != nil {
		return 0, err
	}
	t.dirs[dir] = attr.Inode()
	return t.dirs[dir], nil
}

// Help implements Target.
func (t *clusterTarget) Help() ReadHelp {
	s := t.c.Stats()
	return ReadHelp{Rebuilt: s.StripesRebuilt, Hedged: s.ChunksHedged, HedgesWon: s.HedgesWon}
}

// Close implements Target: it ends the session.
func (t *clusterTarget) Close() error { return t.close() }

// PathTarget works on a mounted file system, below dir.
func PathTarget(dir string) Target { return pathTarget(dir) }

type pathTarget string

func (t pathTarget) at(name string) string { return filepath.Join(string(t), name) }

// Write implements Target: it ends with an fsync and a close.
func (t pathTarget) Write(ctx context.Context, name string, total int64, source []byte) error {
	f, err := os.Create(t.at(name))
	if err != nil {
		return err
	}
	defer f.Close()
	const piece = 1 << 20
	for off := int64(0); total > 0 && ctx.Err() == nil; off += piece {
		at := off % int64(len(source))
		n, err := f.Write(source[at : at+min(piece, total)])
		if err != nil {
			return err
		}
		total -= int64(n)
	}
	return errors.Join(ctx.Err(), f.Sync())
}

// Read implements Target.
func (t pathTarget) Read(ctx context.Context, name string, buf []byte) (int64, error) {
	f, err := os.Open(t.at(name))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var total int64
	for ctx.Err() == nil {
		n, err := f.Read(buf[:1<<20])
		total += int64(n)
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
	return total, ctx.Err()
}

// Mkdir implements Target.
func (t pathTarget) Mkdir(_ context.Context, name string) error {
	return os.MkdirAll(t.at(name), 0o755)
}

// Small implements Target.
func (t pathTarget) Small(_ context.Context, op Op, name, to string) error {
	switch op {
	case OpCreate:
		f, err := os.OpenFile(t.at(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return f.Close()
	case OpStat:
		_, err := os.Stat(t.at(name))
		return err
	case OpReadDir:
		_, err := os.ReadDir(t.at(name))
		return err
	case OpRename:
		return os.Rename(t.at(name), t.at(to))
	case OpUnlink:
		return os.Remove(t.at(name))
	}
	return fmt.Errorf("bench: a path does not support %s", op)
}

// Help implements Target. The reads of the mount's process are not known here.
func (t pathTarget) Help() ReadHelp { return ReadHelp{} }

// Close implements Target.
func (t pathTarget) Close() error { return nil }
